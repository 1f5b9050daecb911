from __future__ import annotations

import json

import pytest
from tiny_models import make_tiny_llama

from hf_recipes.training.measure_form import measure_form, milliseconds_per_token


@pytest.fixture
def suite(tmp_path):
    """Two questions and two general rows."""
    talk = [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "Paris."}]
    file = tmp_path / "rows.jsonl"
    file.write_text(2 * (json.dumps({"messages": talk}) + "\n"))
    return {"domain": str(file), "general": str(file), "max_new_tokens": 4, "samples": 2}


def order(directory, **more):
    return {"kind": "model", "path": str(directory), "tokenizer": str(directory), "measure": True, **more}


def test_a_model_is_measured_and_compared_with_itself(tiny_model_dir, suite, tmp_path):
    result = measure_form(order(tiny_model_dir, suite=suite, reference=str(tmp_path / "reference.npz")))
    assert result["runtime"] == "transformers"
    assert result["closeness"]["kl_mean"] == 0.0
    assert result["general"]["tokens"] > 0
    assert result["domain"]["rows"] == 2
    assert result["ms_per_token"] > 0 and result["load_seconds"] > 0
    assert (tmp_path / "reference.npz").is_file()
    json.dumps(result)


def test_unmeasured_is_loaded_and_compared_all_the_same(tiny_model_dir, suite, tmp_path):
    result = measure_form(order(tiny_model_dir, suite=suite, measure=False, reference=str(tmp_path / "r.npz")))
    assert set(result) == {"runtime", "dtype", "load_seconds", "closeness"}


def test_an_adapter_is_measured_on_its_base(tiny_model_dir, tokenizer, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make_tiny_llama(len(tokenizer)), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    file = str(tmp_path / "reference.npz")
    measure_form(order(tiny_model_dir, measure=False, reference=file))
    result = measure_form(
        order(tmp_path / "adapter", kind="adapter", base=str(tiny_model_dir), measure=False, reference=file)
    )
    assert result["closeness"]["kl_mean"] > 0


def test_time_a_token_leaves_the_prompt_out(tiny_model, tokenizer):
    assert 0 < milliseconds_per_token(tiny_model.eval(), tokenizer) < 1000
