from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import LossRecorder, lora_config, make_trainer, read_losses, tiny_llama
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from hf_recipes import UserError
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.core.events import read_events


class Spoil(TrainerCallback):
    """Damages checkpoint-N between the Trainer's save and the keeper's look at it."""

    def __init__(self, file, change, step=2):
        self.file, self.change, self.step = file, change, step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            file = f"{args.output_dir}/checkpoint-{state.global_step}/{self.file}"
            tensors = load_file(file)
            self.change(tensors)
            save_file(tensors, file, metadata={"format": "pt"})


def names(output):
    return sorted(path.name for path in output.glob("checkpoint-*"))


def test_every_checkpoint_is_marked_and_verified_and_the_event_says_so(tmp_path):
    keeper = CheckpointKeeper(extra={"recipe": "abc"})
    make_trainer(tmp_path, [keeper]).train()
    assert keeper.failed is None
    for step in (1, 2):
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert read_manifest(checkpoint).extra["recipe"] == "abc"
        assert read_verified(checkpoint)["level"] == "reload"
        assert read_verified(checkpoint)["ok"]
    first, second = [event for event in read_events(tmp_path) if event["kind"] == "verify"]
    assert (first["step"], second["step"]) == (1, 2)
    assert second["ok"]
    assert second["problems"] == []
    assert 0 < second["seconds"] < 60


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        (lambda: tiny_llama(tie_word_embeddings=False), None),
        (lambda: tiny_llama().to(torch.bfloat16), None),
        (tiny_llama, lora_config(use_dora=True)),
        (tiny_llama, lora_config(modules_to_save=["lm_head"])),
        (tiny_llama, lora_config(init_lora_weights="pissa")),
        (lambda: torch.nn.ModuleDict(), None),
    ],
    ids=["untied", "bf16", "dora", "modules_to_save", "pissa", "plain module"],
)
def test_reload_finds_every_tensor_as_it_is_in_memory(model, lora, tmp_path):
    built = model()
    if isinstance(built, torch.nn.ModuleDict):
        built = PlainModel()
    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [keeper], lora=lora, model=built, remove_unused_columns=False, max_steps=1).train()
    assert keeper.failed is None
    assert read_verified(tmp_path / "checkpoint-1")["level"] == "reload"


class PlainModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 64)

    def forward(self, input_ids, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.table(input_ids).flatten(0, 1), labels.flatten())}


NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors[NAME][0].mul_(1.0001), "differs from the model in memory"),
        (lambda tensors: tensors.pop(NAME), "in the model but not in the checkpoint"),
        (lambda tensors: tensors.update(odd=torch.ones(2)), "is not in the model"),
        (lambda tensors: tensors[NAME].fill_(float("nan")), "holds NaN"),
    ],
)
def test_c3_a_save_that_differs_from_memory_stops_the_run_before_the_next_save(change, said, tmp_path, caplog):
    keeper = CheckpointKeeper()
    trainer = make_trainer(tmp_path, [Spoil("model.safetensors", change), keeper], max_steps=5)
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    mark = read_verified(tmp_path / "checkpoint-2")
    assert not mark["ok"]
    assert said in str(mark["problems"])
    assert keeper.failed.startswith(f"checkpoint-2 is not good: {mark['problems'][0]}")
    assert keeper.failed in caplog.text
    (alarm,) = [event for event in read_events(tmp_path) if event["kind"] == "alarm"]
    assert alarm["step"] == 2


def test_c3_a_bad_save_gets_no_manifest_so_that_nothing_vouches_for_it_once_its_mark_is_lost(tmp_path):
    change = Spoil("model.safetensors", lambda tensors: tensors[NAME][0].mul_(1.0001))
    make_trainer(tmp_path, [change, CheckpointKeeper()], max_steps=5).train()
    assert not (tmp_path / "checkpoint-2" / "manifest.json").exists()
    ((_, reason),) = last_good_checkpoint(tmp_path).skipped
    assert "did not verify when it was written" in reason
    (tmp_path / "checkpoint-2" / "verified.json").unlink()
    assert last_good_checkpoint(tmp_path).path == tmp_path / "checkpoint-1"


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_c4_a_save_that_could_not_be_continued_is_not_good_and_removes_none_that_could(file, tmp_path):
    class Lose(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 2:
                (tmp_path / "checkpoint-2" / file).unlink()

    keeper = CheckpointKeeper(save_total_limit=1)
    make_trainer(tmp_path, [Lose(), keeper], max_steps=5).train()
    assert f"without {file}" in keeper.failed
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert last_good_checkpoint(tmp_path).path == tmp_path / "checkpoint-1"


def test_only_weights_are_good_where_no_more_was_asked_for(tmp_path):
    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [keeper], save_only_model=True).train()
    assert keeper.failed is None
    assert read_verified(tmp_path / "checkpoint-2")["ok"]


def test_c3_a_bit_that_flips_in_the_optimizer_before_it_was_hashed_is_seen(tmp_path):
    class Flip(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 2:
                file = tmp_path / "checkpoint-2" / "optimizer.pt"
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)

    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [Flip(), keeper], max_steps=5).train()
    assert "optimizer.pt" in keeper.failed


def test_t8_an_adapter_saved_empty_stops_the_run_at_the_first_save(tmp_path):
    def empty(tensors):
        for name in tensors:
            tensors[name] = torch.empty(0)

    keeper = CheckpointKeeper(level="structure")
    trainer = make_trainer(
        tmp_path, [Spoil("adapter_model.safetensors", empty, step=1), keeper], lora=lora_config(), max_steps=5
    )
    trainer.train()
    assert names(tmp_path) == ["checkpoint-1"]
    assert "shape [0]" in keeper.failed


def test_off_writes_the_manifest_and_verifies_nothing(tmp_path):
    change = Spoil("model.safetensors", lambda tensors: tensors[NAME].fill_(float("nan")), step=1)
    keeper = CheckpointKeeper(level="off", save_total_limit=1)
    make_trainer(tmp_path, [change, keeper], max_steps=2).train()
    assert keeper.failed is None
    assert names(tmp_path) == ["checkpoint-2"]
    assert read_manifest(tmp_path / "checkpoint-2")
    assert read_verified(tmp_path / "checkpoint-2") is None


def test_it_takes_over_the_limit_rotates_by_step_and_gives_it_back(tmp_path):
    """The Trainer would remove by modification time; here the newest checkpoint has the oldest."""

    class Backdate(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            past = time.time() - 1000 * state.global_step
            os.utime(f"{args.output_dir}/checkpoint-{state.global_step}", (past, past))

    trainer = make_trainer(tmp_path, [CheckpointKeeper(), Backdate()], max_steps=5, save_total_limit=2)
    trainer.train()
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-5"]
    assert trainer.args.save_total_limit == 2
    removed = [name for event in read_events(tmp_path) if event["kind"] == "verify" for name in event["removed"]]
    assert removed == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_the_last_verified_one_survives_a_bad_save_and_so_does_the_best(tmp_path):
    change = Spoil("model.safetensors", lambda tensors: tensors[NAME].fill_(float("nan")), step=3)
    trainer = make_trainer(tmp_path, [change, CheckpointKeeper(save_total_limit=1)], max_steps=5)
    trainer.train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-3"]
    assert not read_verified(tmp_path / "checkpoint-3")["ok"]

    class BestIsFirst(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            state.best_model_checkpoint = f"{args.output_dir}/checkpoint-1"

    make_trainer(tmp_path / "best", [BestIsFirst(), CheckpointKeeper(save_total_limit=1)], max_steps=3).train()
    assert names(tmp_path / "best") == ["checkpoint-1", "checkpoint-3"]


def test_exchanged_rows_of_a_weight_differ_from_memory_too(tmp_path):
    def exchange(tensors):
        tensors[NAME][[0, 1]] = tensors[NAME][[1, 0]].clone()

    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [Spoil("model.safetensors", exchange, step=1), keeper]).train()
    assert "differs from the model in memory" in keeper.failed


def test_what_a_callback_behind_it_writes_is_not_verified_and_does_no_harm(tmp_path):
    class Late(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            Path(f"{args.output_dir}/checkpoint-{state.global_step}/late.json").write_text("half of")

    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [keeper, Late()]).train()
    assert keeper.failed is None
    assert "late.json" not in read_manifest(tmp_path / "checkpoint-2").files


def test_the_losses_are_those_of_a_run_without_it(tmp_path):
    kept, plain = (tmp_path / f"{name}.jsonl" for name in ("kept", "plain"))
    make_trainer(tmp_path / "kept", [LossRecorder(kept), CheckpointKeeper()], max_steps=4, save_steps=3).train()
    make_trainer(tmp_path / "plain", [LossRecorder(plain)], max_steps=4, save_steps=3).train()
    assert read_losses(kept) == read_losses(plain)


def test_a_wrong_level_is_wrong_use():
    with pytest.raises(UserError, match="did you mean 'reload'"):
        CheckpointKeeper(level="reloaded")
