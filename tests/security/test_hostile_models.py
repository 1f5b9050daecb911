"""Models, adapters and checkpoints of strangers: code beside them, pickles in them, modules that they want imported."""

from __future__ import annotations

import json
import logging
import pickle
import shutil

import pytest

from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.core.meta_model import model_on_meta, named_class
from hf_recipes.evaluation.prepared import _load_tokenizer, load_causal_lm, load_peft_adapter
from hf_recipes.export.bases.linear_layers import model_of_task
from hf_recipes.export.meta_model import build_on_meta
from hf_recipes.export.proofs.live_models import load_plain
from hf_recipes.export.proofs.same_tokenizer import tokenizer_differences
from hf_recipes.models.base import load_base
from hf_recipes.models.source import find_model, tell_trusted_code
from hf_recipes.models.tokenizer import load_tokenizer
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.evaluation_loaders import load_model
from hf_recipes.training.plan_job import load_config


class Runs:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return open, (str(self.canary), "w")


@pytest.fixture
def with_code(tiny_model_dir, tmp_path, evil):
    """A model whose config and tokenizer name Python beside them, of a kind that transformers does not know."""
    place = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (place / "evil.py").write_text(evil)
    for name, changes in (
        (
            "config.json",
            {
                "model_type": "evil",
                "architectures": ["Model"],
                "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
            },
        ),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}},
        ),
    ):
        content = json.loads((place / name).read_text())
        (place / name).write_text(json.dumps({**content, **changes}))
    return place


DOORS = {
    "tokenizer": lambda place: load_tokenizer(str(place)),
    "base": lambda place: load_base(find_model(place), dtype="fp32"),
    "evaluated model": lambda place: load_model(str(place), None, "float32"),
    "evaluated model, plainly": lambda place: load_causal_lm(str(place), None, "float32"),
    "evaluated tokenizer": lambda place: _load_tokenizer(str(place)),
    "planned config": lambda place: load_config(Recipe("r", {"model_name_or_path": str(place)}, frozenset())),
    "merge on the meta device": lambda place: build_on_meta(place, json.loads((place / "config.json").read_text())),
    "quantised layers": lambda place: model_of_task(place, "CAUSAL_LM"),
    "proof": lambda place: load_plain(str(place), {"architectures": ["LlamaForCausalLM"]}),
    "compared tokenizers": lambda place: tokenizer_differences(str(place), str(place)),
}


@pytest.mark.parametrize("door", DOORS)
def test_code_of_a_model_is_not_run_and_nobody_is_asked(door, with_code, canary, says_yes):
    try:
        DOORS[door](with_code)
    except (ValueError, OSError, KeyError) as error:  # UserError is a ValueError
        assert "unpickl" not in str(error)
    assert not canary.exists() and says_yes.tell() == 0


@pytest.mark.parametrize("door", ["tokenizer", "base", "evaluated model", "planned config"])
def test_the_sentence_says_what_to_do(door, with_code):
    with pytest.raises(UserError, match="Python of its own, which is not run here") as error:
        DOORS[door](with_code)
    assert "\n" not in str(error.value)


def test_verification_loads_no_code(with_code, canary, says_yes):
    report = verify_checkpoint(with_code, "reload")
    assert not canary.exists() and says_yes.tell() == 0
    assert any("no other code is run" in note for note in report.notes)


def test_code_runs_where_it_is_asked_for_and_that_is_told_once(with_code, canary, caplog):
    """Without this, a canary that never sings would prove nothing."""
    tell_trusted_code.cache_clear()
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        load_tokenizer(str(with_code), trust_remote_code=True)
        load_base(find_model(with_code), dtype="fp32", trust_remote_code=True)
    assert canary.exists()
    told = [record.getMessage() for record in caplog.records if "trust_remote_code" in record.getMessage()]
    assert len(told) == 1 and str(with_code) in told[0]


@pytest.mark.parametrize("name", ["pipeline", "GenerationConfig", "AutoModelForCausalLM", "logging", 3, None])
def test_a_config_cannot_name_anything_but_a_model_class(name):
    assert named_class(name) is None
    assert named_class("LlamaForCausalLM") is not None


def test_another_class_named_in_a_config_is_not_called(tiny_model):
    assert type(model_on_meta(tiny_model.config, "GenerationConfig")).__name__ == "LlamaForCausalLM"


def test_pickled_weights_that_run_something_are_not_loaded(tiny_model_dir, tmp_path, canary):
    place = shutil.copytree(tiny_model_dir, tmp_path / "pickled")
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Runs(canary)}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_base(find_model(place), dtype="fp32")
    assert not canary.exists()


@pytest.fixture
def adapter(tiny_model, tmp_path):
    from peft import LoraConfig, get_peft_model

    place = tmp_path / "adapter"
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(tiny_model, config).save_pretrained(place)
    return place


def test_a_pickled_adapter_that_runs_something_is_not_loaded(adapter, tiny_model_dir, canary):
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps({"w": Runs(canary)}))
    with pytest.raises((UserError, pickle.UnpicklingError)):
        load_peft_adapter(load_causal_lm(str(tiny_model_dir), None, "float32"), adapter)
    assert not canary.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"megatron_config": {"hidden_size": 8}, "megatron_core": "planted"},
        {"auto_mapping": {"base_model_class": "score", "parent_library": "planted"}, "task_type": None},
    ],
)
def test_an_adapter_imports_no_module_that_it_names(
    changes, adapter, tiny_model_dir, tmp_path, monkeypatch, canary, evil
):
    (tmp_path / "planted.py").write_text(evil)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    try:
        load_peft_adapter(load_causal_lm(str(tiny_model_dir), None, "float32"), adapter)
    except ValueError as error:
        assert "megatron_core" in str(error)
    verify_checkpoint(adapter, "reload", tiny_model_dir)
    assert not canary.exists()


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "global_step1/mp_rank_00.pt"])
def test_a_checkpoint_with_a_pickle_that_runs_something_is_not_resumed(file, tiny_model_dir, tmp_path, canary):
    checkpoint = shutil.copytree(tiny_model_dir, tmp_path / "run" / "checkpoint-1")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (checkpoint / name).write_bytes(pickle.dumps({}))
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 1, "log_history": []}))
    (checkpoint / file).parent.mkdir(exist_ok=True)
    (checkpoint / file).write_bytes(pickle.dumps({"state": Runs(canary)}))
    with pytest.raises(UserError, match="cannot be resumed"):
        resolve_resume(str(checkpoint), checkpoint.parent)
    assert not canary.exists()
