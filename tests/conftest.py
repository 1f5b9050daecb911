"""Fixtures shared by all tests: a real (trained here) small tokenizer, tiny random models, and the real SmolLM2."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Before any Hugging Face import: tests never reach for the Hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny models spend all their time waking threads; ranks started by tests must share the cores anyway.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Importing deepspeed, where it is installed, would otherwise search for devices and say so.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

# What tests prepare goes with them; every worker has a place of its own.
os.environ["HF_RECIPES_DATA_CACHE"] = tempfile.mkdtemp(prefix="hf_recipes_data_")

# A shell's background job inherits a Ctrl-C that is ignored, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings
from tiny_models import make_tiny_llama

# The same examples at every run, so that a change is judged by what it changed. `.ci/full` looks for new ones.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # a busy machine is no fault
settings.register_profile("same_examples", derandomize=True, **_CALM)
settings.register_profile("new_examples", **_CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same_examples"))

atexit.register(shutil.rmtree, os.environ["HF_RECIPES_DATA_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """A run takes all cores; a tiny model in a test is many times slower with two threads than with one."""
    monkeypatch.setattr("hf_recipes.training.environment.threads_per_rank", lambda cores, local_ranks: 1)


_modules_at_the_last_freeze = 0


@pytest.fixture(autouse=True)
def only_new_garbage():
    """What the libraries' modules are made of is put where the garbage collector does not look: the Trainer calls it at
    each start, and going through their million objects takes far longer than training a tiny model."""
    global _modules_at_the_last_freeze
    if len(sys.modules) != _modules_at_the_last_freeze:
        gc.collect()
        gc.freeze()
        _modules_at_the_last_freeze = len(sys.modules)


SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENIZER_CORPUS = [
    "The quick brown fox jumps over the lazy dog. 0123456789",
    'Please send 12 blue pens to Anna by March 3. {"customer": "Anna", "item": "blue pens", "quantity": 12}',
    "system user assistant tool\nHello! How can I help you today? Sure, here is the answer: yes, no, maybe.",
    "What is the capital of France? Paris. Explain what a function does in Python: def f(x): return x + 1",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level BPE with ChatML, trained in a moment; pad is eos, as in SmolLM2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator(TOKENIZER_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture
def tiny_model(tokenizer):
    """A fresh tiny Llama that fits `tokenizer`."""
    return make_tiny_llama(len(tokenizer))


@pytest.fixture(scope="session")
def tiny_model_dir(tokenizer, tmp_path_factory) -> Path:
    """A saved tiny Llama with tokenizer and chat template. Read-only: copy it before changing it."""
    directory = tmp_path_factory.mktemp("tiny-llama")
    make_tiny_llama(len(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def four_bit_model_dir(tokenizer, tmp_path_factory) -> Path:
    """As `tiny_model_dir`, of rows in whole blocks of 64 values, as `core.four_bits` asks on some CPUs."""
    directory = tmp_path_factory.mktemp("four-bit-llama")
    make_tiny_llama(len(tokenizer), hidden_size=64, intermediate_size=128).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The real SmolLM2-135M-Instruct in bf16 safetensors; skips where no source has it."""
    from hf_recipes.core.errors import UserError
    from hf_recipes.models.smollm2 import find_smollm2

    try:
        return find_smollm2().path
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data files that are not part of the repository; skips where they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the shared test data is not here")
    return SHARED_DATA
