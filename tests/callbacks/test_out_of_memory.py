"""Real out-of-memory errors in each phase of real runs, told in one sentence with the knob that helps there."""

from __future__ import annotations

import errno
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from watch_helpers import PoisonModel, make_trainer

from hf_recipes.callbacks.out_of_memory import (
    advice_for,
    asked_size,
    explained_out_of_memory,
    is_out_of_memory,
    phase_of,
)
from hf_recipes.core.errors import CheckFailed


def too_much():
    """Ask for 128 TiB: refused at once by any allocator."""
    return torch.empty(2**45)


class _GreedyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        too_much()


class Greedy(PoisonModel):
    """Runs out of memory in one phase."""

    def __init__(self, phase):
        super().__init__()
        self.phase = phase

    def forward(self, input_ids, labels):
        if self.phase == ("forward" if self.training else "evaluation"):
            too_much()
        output = super().forward(input_ids, labels)
        if self.phase == "backward" and self.training:
            output["loss"] = _GreedyBackward.apply(output["loss"])
        if self.phase == "recomputation" and self.training:
            asked = []

            def twice(hidden):
                asked.append(1)
                return hidden.exp() if len(asked) == 1 else too_much()

            output["loss"] = torch.utils.checkpoint.checkpoint(twice, output["loss"], use_reentrant=False)
        return output


class GreedyOptimizer(torch.optim.SGD):
    def step(self, closure=None):
        too_much()


@pytest.mark.parametrize(
    ("phase", "told", "knob"),
    [
        ("forward", "in the forward pass", "max_length"),
        ("backward", "in the backward pass", "activation_checkpointing: true"),
        ("recomputation", "in the backward pass", "activation_checkpointing: true"),
        ("evaluation", "in the evaluation", "per_device_eval_batch_size: 1"),
    ],
)
def test_real_errors_name_phase_size_and_knob(phase, told, knob, tmp_path):
    trainer = make_trainer(tmp_path, [], model=Greedy(phase), eval_strategy="steps", eval_steps=1)
    with pytest.raises(CheckFailed) as failure, explained_out_of_memory(trainer.args):
        trainer.train()
    sentence = str(failure.value)
    assert sentence.startswith(f"Out of memory {told} (1.41e+05 GB more were asked for). What to do")  # 2⁴⁵ × 4 bytes
    assert knob in sentence
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_optimizer_step(tmp_path):
    trainer = make_trainer(tmp_path, [])
    trainer.optimizer = GreedyOptimizer(trainer.model.parameters(), lr=0.1)
    told = r"in the optimizer step.*optim: paged_adamw_8bit.*method: lora"
    with pytest.raises(CheckFailed, match=told), explained_out_of_memory(trainer.args):
        trainer.train()


def test_save(tmp_path):
    model = PoisonModel()
    model.state_dict = lambda *args, **kwargs: too_much()
    trainer = make_trainer(tmp_path, [], model=model, save_strategy="steps", save_steps=1)
    with pytest.raises(CheckFailed, match="Out of memory while saving"), explained_out_of_memory(trainer.args):
        trainer.train()


def test_in_anybodys_loop_without_a_trainer():
    model = Greedy("backward")
    with pytest.raises(CheckFailed, match="in the backward pass"), explained_out_of_memory():
        model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))["loss"].backward()
    model = Greedy("forward")
    with pytest.raises(CheckFailed, match="in the forward pass"), explained_out_of_memory():
        model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))


_LIMITED = """
import resource, torch
from hf_recipes.callbacks.out_of_memory import explained_out_of_memory
layer = torch.nn.Linear(1024, 1024)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
with explained_out_of_memory():
    batches = [layer(torch.ones(2**12, 1024)) for _ in range(1000)]
"""


@pytest.mark.trials
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="address space limits as Linux has them")
def test_a_process_that_reaches_its_limit():
    ended = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, timeout=300)
    assert "CheckFailed: Out of memory " in ended.stderr
    assert "0.0168 GB more were asked for" in ended.stderr  # 2¹² × 1,024 × 4 bytes


def test_other_errors_pass_as_they_are():
    for error in (RuntimeError("shape mismatch"), OSError(errno.ENOSPC, "disk full"), ValueError("no")):
        with pytest.raises(type(error)) as failure, explained_out_of_memory():
            raise error
        assert failure.value is error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1073741824 bytes."),
        RuntimeError("NCCL Error 1: unhandled cuda error: Cuda failure 2 'out of memory'"),
        RuntimeError("unable to mmap 1024 bytes from file: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_what_counts_as_out_of_memory(error):
    assert is_out_of_memory(error)
    wrapped = ValueError("the compiler failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize("text", ["memory format", "the size of tensor a must match", "pinned memory thread exited"])
def test_what_does_not(text):
    assert not is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0", "2.00 GiB"),
        ("you tried to allocate 1073741824 bytes. Error code 12", "1.07 GB"),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_size_asked_for(message, size):
    assert asked_size(message) == size


TRAIN = [("/x/transformers/trainer.py", "train"), ("/x/transformers/trainer.py", "training_step")]
FORWARD = [("/x/trl/trainer/sft_trainer.py", "compute_loss"), ("/x/torch/nn/modules/module.py", "_call_impl")]
BACKWARD = [("/x/accelerate/accelerator.py", "backward"), ("/x/torch/_tensor.py", "backward")]


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (TRAIN + FORWARD, "forward"),
        (TRAIN + BACKWARD + FORWARD, "backward"),  # recomputation
        ([*TRAIN, ("/x/accelerate/optimizer.py", "step"), ("/x/torch/optim/adamw.py", "step")], "optimizer step"),
        ([*TRAIN, ("/x/deepspeed/runtime/engine.py", "step")], "optimizer step"),
        ([*TRAIN, ("/x/transformers/trainer.py", "evaluate"), *FORWARD], "evaluation"),
        ([("C:\\x\\transformers\\trainer.py", "_save_checkpoint"), ("C:\\x\\torch\\serialization.py", "save")], "save"),
        ([("/x/transformers/modeling_utils.py", "from_pretrained")], "loading"),
        ([("/x/my_script.py", "main")], "elsewhere"),
        ([], "elsewhere"),
    ],
)
def test_the_outermost_phase_counts(frames, phase):
    assert phase_of(frames) == phase


def test_what_is_at_its_end_already_is_not_advised():
    spent = SimpleNamespace(
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        activation_checkpointing=True,
        optim="paged_adamw_8bit",
        per_device_eval_batch_size=1,
        prediction_loss_only=True,
        world_size=1,
    )
    for phase in ("forward", "backward", "optimizer step", "evaluation", "save", "loading", "elsewhere"):
        said = " ".join(advice_for(phase, spent))
        assert said
        for settled in ("batch_size", "activation_checkpointing", "paged_adamw_8bit", "prediction_loss_only", "bucket"):
            assert settled not in said


def test_the_batch_stays_the_same_and_buckets_belong_to_several_ranks():
    args = SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=2, world_size=2, optim="adamw")
    said = "; ".join(advice_for("backward", args))
    assert "per_device_train_batch_size: 1 with gradient_accumulation_steps: 8" in said
    assert "ddp_bucket_cap_mb" in said
    args.deepspeed = "ds.json"
    assert "reduce_bucket_size" in "; ".join(advice_for("backward", args))


def test_t11_evaluation_is_told_to_keep_losses_only():
    assert any("prediction_loss_only: true" in knob for knob in advice_for("evaluation"))
