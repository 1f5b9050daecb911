"""Fixtures for attacks: a file that shows whether foreign code ran, and a cache that remembers nothing."""

from __future__ import annotations

import io
import sys

import pytest


@pytest.fixture
def canary(tmp_path):
    """A path that exists once something of an attacker has run."""
    return tmp_path / "canary"


@pytest.fixture
def evil(canary):
    """Python text that makes the canary and gives whatever is asked of it."""
    return (
        f"open({str(canary)!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        "class Config(LlamaConfig):\n    model_type = 'evil'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Config\n"
        "class Tokenizer(PreTrainedTokenizerFast):\n    pass\n"
        "def score(answer, reference, row):\n    return 1.0\n"
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Of this test alone, for what is remembered and for code that transformers copies before it runs it."""
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.fixture
def says_yes(monkeypatch):
    """Standard input that answers yes to all questions, as `yes | hf-recipes …` does; empty is a question asked."""
    answers = io.StringIO("y\n" * 20)
    monkeypatch.setattr(sys, "stdin", answers)
    return answers
