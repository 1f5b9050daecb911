from __future__ import annotations

import shutil

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.export.forms.names import parse_forms
from hf_recipes.export.forms.space import count_parameters, needed_bytes


@pytest.mark.parametrize(
    ("forms", "bytes_a_weight"),
    [
        ("merged-bf16", 2.0),
        ("merged-bf16,merged-fp32", 6.0),
        ("merged-bf16,gguf:q8_0", 2.0 + 8.5 / 8),
        ("gguf:q8_0", 2.0 + 8.5 / 8),  # a merged model is made for it
        ("merged-bf16,gguf:q4_0", 2.0 + 2.0 + 4.5 / 8),  # and a GGUF in 16 bits to quantise from
    ],
)
def test_what_forms_are_made_from_is_counted(forms, bytes_a_weight):
    assert needed_bytes(parse_forms(forms), 1000, 7) == int(1000 * bytes_a_weight)


def test_an_adapter_takes_its_own_size():
    assert needed_bytes(parse_forms("adapter"), 1000, 7) == 7


def test_parameters_are_counted_from_headers(base):
    from transformers import AutoModelForCausalLM

    assert count_parameters(base) == AutoModelForCausalLM.from_pretrained(base).num_parameters()


def test_a_damaged_model_is_one_sentence(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"The model to be written is damaged: .*too few for a safetensors header"):
        count_parameters(tmp_path)


def test_a_full_disk_is_wrong_use_before_anything_is_written(tmp_path):
    from hf_recipes.export.merge_writing import _check_space
    from hf_recipes.training.export import _check_room

    free = shutil.disk_usage(tmp_path).free
    _check_room(tmp_path / "exports", 1)
    with pytest.raises(UserError, match="The forms need about"):
        _check_room(tmp_path / "exports" / "deeper", free)
    with pytest.raises(UserError, match="The merged model needs"):
        _check_space(tmp_path / "exports" / "deeper", free)
    assert not (tmp_path / "exports").exists()
