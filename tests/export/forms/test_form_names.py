from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.export.forms.names import GGUF_BITS, Form, parse_forms


def test_forms_are_read_in_order_and_each_once():
    forms = parse_forms("gguf:Q4_K_M, adapter,merged-bf16,gguf,gguf:q8_0,merged-bfloat16,bnb-4bit")
    assert [form.name for form in forms] == ["gguf:q4_k_m", "adapter", "merged-bf16", "gguf:q8_0", "bnb-4bit"]
    assert [form.folder for form in forms] == ["gguf-q4_k_m", "adapter", "merged-bf16", "gguf-q8_0", "bnb-4bit"]


def test_a_folder_name_is_understood_as_the_form():
    assert parse_forms("gguf-q6_k") == [Form("gguf", "q6_k")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("merged-bf61", "did you mean 'merged-bf16'"),
        ("gguf:q4_km", "did you mean 'q4_k_m'"),
        ("gptq", "is no form"),
        ("adapter:x", "is no form"),
        (" , ", "names no form"),
    ],
)
def test_an_unknown_form_is_one_sentence(text, sentence):
    with pytest.raises(UserError, match="--forms") as caught:
        parse_forms(text)
    assert sentence in str(caught.value)


def test_bits_are_those_of_ggml_blocks():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for name in ("f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_xs"):
        values, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
        assert GGUF_BITS[name] == 8 * nbytes / values, name
