"""Faults that this machine can really make: signature → a function that raises, or prints, its message.

Each is run in a process of its own kind by `test_log_provoked.py`; they are the test that a signature knows what the
installed stack says, and not only what it once said.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp


def _place() -> Path:
    return Path(mkdtemp(prefix="provoked_"))


def _tiny():
    from tiny_models import make_tiny_llama

    return make_tiny_llama()


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", model_max_length=4)


def _arguments(**values):
    from transformers import TrainingArguments

    return TrainingArguments(output_dir=str(_place()), use_cpu=True, report_to=[], **values)


def _trainer(dataset, **values):
    from transformers import Trainer

    return Trainer(model=_tiny(), args=_arguments(max_steps=1, **values), train_dataset=dataset)


def _rows():
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[1, 2, 3]] * 4, "labels": [[1, 2, 3]] * 4})


# Memory and files


def host_memory():
    import torch

    torch.empty(1 << 50)


def too_many_files():
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard))
    kept = []
    while True:
        kept.append(open(os.devnull))  # noqa: SIM115


def disk_full():
    with open("/dev/full", "w") as file:
        file.write("a")


def worker_lost():
    from torch.utils.data import DataLoader

    list(DataLoader([0] * 4, num_workers=1, collate_fn=_leave))


def _leave(rows):
    os._exit(1)


def permission():
    raise PermissionError(13, "Permission denied", "/locked/checkpoint-10")


# Ranks


def address_in_use():
    import torch.distributed as dist

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, is_master=True)


def rendezvous_timeout():
    import torch.distributed as dist

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=1))


def clients_missing():
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(seconds=1))


def no_address():
    import torch.distributed as dist

    dist.TCPStore("no.such.host.invalid", 29500, 1, is_master=False, timeout=timedelta(seconds=1))


def no_rendezvous_environment():
    import torch.distributed as dist

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def unused_parameters():
    import torch
    from torch.nn.parallel import DistributedDataParallel

    with _Group():
        layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        model = DistributedDataParallel(_First(layers))
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()


class _First:
    def __new__(cls, layers):
        import torch

        class First(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = layers

            def forward(self, x):
                return self.layers[0](x)

        return First()


class _Group:
    def __enter__(self):
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{_place()}/store", rank=0, world_size=1)

    def __exit__(self, *_):
        import torch.distributed as dist

        dist.destroy_process_Group()


def gloo_peer_lost():
    """Two ranks: the second leaves, the first still talks."""
    code = (
        "import sys, os, torch, torch.distributed as d; r=int(sys.argv[1]);"
        "d.init_process_group('gloo', init_method='file://'+sys.argv[2], rank=r, world_size=2);"
        "d.barrier(); os._exit(1) if r else None;"
        "d.all_reduce(torch.ones(1 << 20))"
    )
    import subprocess

    store = _place() / "store"
    first, second = (
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(store)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    )
    _, told = first.communicate(timeout=300)
    second.communicate(timeout=300)
    print(told, file=sys.stderr)


def child_failed():
    import subprocess

    script = _place() / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1': raise ValueError('no known fault at all')\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    print(subprocess.run([*command, str(script)], capture_output=True, text=True).stderr, file=sys.stderr)


def killed_rank():
    import subprocess

    script = _place() / "script.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", "--master_port", "0"]
    print(subprocess.run([*command, str(script)], capture_output=True, text=True).stderr, file=sys.stderr)


def segmentation_fault():
    import faulthandler

    faulthandler.enable()
    faulthandler._sigsegv()


def accelerate_defaults():
    import subprocess

    script = _place() / "script.py"
    script.write_text("")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "", str(script)]
    command = [sys.executable, "-m", "accelerate.commands.launch", str(script)]
    environment = {**os.environ, "HF_HOME": str(_place())}
    print(subprocess.run(command, capture_output=True, text=True, env=environment).stderr, file=sys.stderr)


# Numbers


def sampled_nan():
    import torch

    torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)


def unscaled_fp16():
    import torch

    layer = torch.nn.Linear(2, 2).half()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    layer.weight.grad, layer.bias.grad = torch.ones(2, 2).half(), torch.ones(2).half()
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


def anomaly():
    import torch

    with torch.autograd.detect_anomaly():
        value = torch.zeros(1, requires_grad=True)
        (value.sqrt() * 0).sum().backward()


# Tokenizer and template


def pad_token():
    _tokenizer()(["a", "a b"], padding=True)


def pad_of_classifier():
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, pad_token_id=None
    )
    LlamaForSequenceClassification(config)(torch.ones(2, 3, dtype=torch.long))


def chat_template():
    _tokenizer().apply_chat_template([{"role": "user", "content": "a"}])


def roles_alternate():
    template = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    _tokenizer().apply_chat_template([{"role": "user", "content": "a"}], chat_template=template)


def system_role():
    template = "{{ raise_exception('System role not supported') }}"
    _tokenizer().apply_chat_template([{"role": "system", "content": "a"}], chat_template=template)


def token_out_of_range():
    import torch

    _tiny()(torch.tensor([[4000]]))


def label_out_of_range():
    import torch

    torch.nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([5]))


def too_long():
    _tokenizer()("a b a b a b")


def unequal_lengths():
    _tokenizer()(["a", "a b"], return_tensors="pt")


# Dtypes and gradients


def bf16_unsupported():
    from transformers import TrainingArguments

    TrainingArguments(output_dir=str(_place()), bf16=True, report_to=[])


def mixed_dtypes():
    import torch

    torch.nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.bfloat16))


def no_gradient():
    import torch

    torch.ones(1).sum().backward()


def checkpoint_without_gradient():
    import torch
    from torch.utils.checkpoint import checkpoint

    checkpoint(torch.nn.Linear(2, 2), torch.ones(1, 2), use_reentrant=True)


def backward_twice():
    import torch

    loss = (torch.ones(1, requires_grad=True) ** 2).exp().sum()
    loss.backward()
    loss.backward()


def changed_in_place():
    import torch

    value = torch.ones(2, requires_grad=True)
    out = value.exp()
    out.add_(1)
    out.sum().backward()


def uniform_dtype():
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    with _Group():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16())
        FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def meta_tensor():
    import torch

    torch.nn.Linear(2, 2, device="meta").to("cpu")


# DeepSpeed and shards


def zero3_empty_weight():
    import torch

    torch.nn.functional.embedding(torch.tensor([0]), torch.empty(0))


def zero3_empty_saved():
    import torch

    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.empty(0), "bias": torch.zeros(2)})


def deepspeed_auto():
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1.0}}}
    path = _place() / "ds.json"
    path.write_text(json.dumps(config))
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    deepspeed = HfTrainerDeepSpeedConfig(str(path))
    args = _arguments(per_device_train_batch_size=2)
    deepspeed.trainer_config_process(args)
    deepspeed.trainer_config_finalize(args, _tiny(), 10)


def deepspeed_batch():
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})


def no_compiler_for_extensions():
    os.environ["PATH"] = ""
    from torch.utils.cpp_extension import verify_ninja_availability

    verify_ninja_availability()


# Loading and the Hub


def not_cached():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoConfig

    AutoConfig.from_pretrained("nobody/nothing")


def no_config():
    from transformers import AutoConfig

    AutoConfig.from_pretrained(str(_place()))


def no_token():
    os.environ["HF_HOME"] = str(_place())
    os.environ.pop("HF_TOKEN", None)
    from huggingface_hub.utils import build_hf_headers

    build_hf_headers(token=True)


def broken_header():
    from safetensors import safe_open

    path = _place() / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    safe_open(str(path), "pt")


def cut_file():
    import safetensors.torch
    import torch

    path = _place() / "model.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(100)}, str(path))
    path.write_bytes(path.read_bytes()[:-50])
    safetensors.torch.load_file(str(path))


def size_mismatch():
    import torch

    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)})


def size_mismatch_of_transformers():
    from transformers import LlamaForCausalLM

    path = _place()
    model = _tiny()
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 700}))
    LlamaForCausalLM.from_pretrained(path)


def refused_pickle():
    import numpy
    import torch

    path = _place() / "rng_state.pth"
    torch.save({"numpy": numpy.random.get_state()}, path)
    torch.load(path, weights_only=True)


def unknown_architecture():
    from transformers import AutoConfig

    path = _place()
    (path / "config.json").write_text('{"model_type": "qwen9"}')
    AutoConfig.from_pretrained(path)


def target_modules():
    from peft import LoraConfig, get_peft_model

    get_peft_model(_tiny(), LoraConfig(target_modules=["query_key_value"]))


def no_adapter_config():
    from peft import PeftConfig

    PeftConfig.from_pretrained(str(_place()))


def nothing_to_resume():
    trainer = _trainer(_rows())
    trainer.train(resume_from_checkpoint=True)


def purely_quantized():
    from transformers.trainer_utils import validate_quantization_for_training

    model = _tiny()
    model.is_quantized = True

    class Quantizer:
        is_trainable = True
        is_qat_trainable = False

    model.hf_quantizer = Quantizer()
    validate_quantization_for_training(model)


def flash_attention_missing():
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(_tiny().config, attn_implementation="flash_attention_2")


# CUDA


def no_cuda_build():
    import torch

    torch.zeros(1, device="cuda")


# Arguments


def removed_argument():
    _arguments(evaluation_strategy="steps")


def warmup_ratio():
    _arguments(warmup_ratio=0.1)


def overwrite_output_dir():
    _arguments(overwrite_output_dir=True)


def removed_tokenizer():
    from transformers import Trainer

    Trainer(model=_tiny(), args=_arguments(), tokenizer=None)


def sft_max_seq_length():
    from trl import SFTTrainer

    SFTTrainer(model=_tiny(), max_seq_length=8)


def sft_dataset_text_field():
    from trl import SFTConfig

    SFTConfig(output_dir=str(_place()), max_seq_length=8)


def load_in_4bit():
    from transformers import LlamaForCausalLM

    path = _place()
    _tiny().save_pretrained(path)
    LlamaForCausalLM.from_pretrained(path, load_in_4bit=True)


def best_model_strategies():
    _arguments(load_best_model_at_end=True, eval_strategy="steps", eval_steps=1, save_strategy="no")


def unknown_flags():
    from transformers import HfArgumentParser, TrainingArguments

    HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "x", "--learninrate", "1"])


def no_columns():
    from datasets import Dataset

    _trainer(Dataset.from_dict({"prompt": ["a"], "completion": ["b"]})).train()


def removed_name():
    from trl import DataCollatorForCompletionOnlyLM  # noqa: F401


def missing_module():
    import flash_attn_nowhere  # noqa: F401


# Data


def cast_error():
    from datasets import load_dataset

    path = _place()
    (path / "a.jsonl").write_text('{"a": 1}\n')
    (path / "b.jsonl").write_text('{"b": 1}\n')
    load_dataset("json", data_files=[str(path / "a.jsonl"), str(path / "b.jsonl")], cache_dir=str(_place()))


def json_types():
    import io

    import pyarrow.json

    pyarrow.json.read_json(io.BytesIO(b'{"a": {"x": 1}}\n{"a": [1]}\n'))


def json_broken():
    import io

    import pyarrow.json

    pyarrow.json.read_json(io.BytesIO(b'{"a": 1 "b"}\n'))


def no_data_files():
    from datasets import load_dataset

    load_dataset(str(_place()))


def not_utf8():
    b"caf\xe9 au".decode("utf-8")


def dataset_script():
    from datasets import load_dataset

    path = _place() / "mine.py"
    path.write_text("import datasets\n")
    load_dataset(str(path))


def not_picklable():
    import pickle

    pickle.dumps(threading.Lock())


def no_rows():
    import torch

    torch.utils.data.RandomSampler([])


def batch_sizes_differ():
    import torch

    torch.nn.functional.cross_entropy(torch.zeros(3, 2), torch.zeros(4, dtype=torch.long))


def no_compiler():
    import torch

    os.environ["PATH"] = ""
    os.environ.pop("CXX", None)
    torch._inductor.config.cpp.cxx = (None, "no-such-compiler")
    torch.compile(lambda x: x.sin() + 1)(torch.ones(4))


def interrupted():
    raise KeyboardInterrupt


def terminated():
    import signal
    import subprocess
    import time

    script = _place() / "script.py"
    script.write_text("import time\ntime.sleep(100)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", "--master_port", "0"]
    process = subprocess.Popen([*command, str(script)], stderr=subprocess.PIPE, text=True)
    time.sleep(15)
    process.send_signal(signal.SIGTERM)
    print(process.communicate()[1], file=sys.stderr)


PROVOKED = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == __name__
}
# What the doctor must call them, where it has another name; None: only a notice, or nothing known.
CALLED = {
    "anomaly": "backward_nan",
    "best_model_strategies": "strategies_differ",
    "broken_header": "safetensors_header",
    "cast_error": "columns_differ",
    "child_failed": None,
    "clients_missing": "ranks_missing",
    "cut_file": "safetensors_cut",
    "deepspeed_auto": "deepspeed_mismatch",
    "gloo_peer_lost": "peer_closed",
    "host_memory": "host_out_of_memory",
    "killed_rank": "killed_by_system",
    "missing_module": "module_missing",
    "no_cuda_build": "cpu_build",
    "no_compiler_for_extensions": "no_ninja",
    "no_config": "no_model_config",
    "no_rendezvous_environment": "rank_variables",
    "not_cached": "offline",
    "removed_argument": "evaluation_strategy",
    "removed_tokenizer": "tokenizer_argument",
    "rendezvous_timeout": "first_machine_unreachable",
    "sft_dataset_text_field": "max_seq_length",
    "sft_max_seq_length": "trainer_data_arguments",
    "size_mismatch_of_transformers": "size_mismatch_table",
    "too_long": None,
    "accelerate_defaults": None,
    "checkpoint_without_gradient": None,
    "uniform_dtype": "fsdp_dtypes",
    "unscaled_fp16": "unscale_fp16",
    "worker_lost": "dataloader_worker_died",
    "zero3_empty_saved": "zero3_empty_tensor",
    "zero3_empty_weight": "zero3_weight_not_gathered",
}
NOTICES = {
    "too_long": "too_long_for_model",
    "accelerate_defaults": "accelerate_defaults",
    "checkpoint_without_gradient": "checkpoint_without_gradient",
}


def main(folder: str, names: list[str]) -> None:
    """Provoke each in a process forked from this one, which has imported all; its words go into a file of its name."""
    import traceback

    import datasets  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401
    import trl  # noqa: F401

    for name in names or list(PROVOKED):
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        file = open(Path(folder) / f"{name}.txt", "w", buffering=1)  # noqa: SIM115
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            PROVOKED[name]()
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
