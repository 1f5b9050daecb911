from __future__ import annotations

import gguf
import numpy as np
import pytest

from hf_recipes.export.forms.gguf_file import GgufFacts, read_gguf_facts
from hf_recipes.export.forms.gguf_form import _types_notice


def write(file, *, adds_bos=None, model="gpt2", types=("Q8_0", "F32")):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(2048)
    writer.add_tokenizer_model(model)
    if adds_bos is not None:
        writer.add_add_bos_token(adds_bos)
    for index, name in enumerate(types):
        kind = gguf.GGMLQuantizationType[name]
        rows = gguf.quantize(np.ones((4, 32), dtype=np.float32), kind)
        writer.add_tensor(f"t{index}", rows, raw_dtype=kind)
    writer.add_tensor("norm", np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_matrices_are_counted_by_type_and_vectors_left_out(tmp_path):
    facts = read_gguf_facts(write(tmp_path / "m.gguf", adds_bos=True))
    assert facts == GgufFacts({"Q8_0": 1, "F32": 1}, adds_bos=True, context=2048, architecture="llama")
    assert facts.describe_types() in ("2 matrices: 1 Q8_0, 1 F32", "2 matrices: 1 F32, 1 Q8_0")


@pytest.mark.parametrize(("model", "adds"), [("llama", True), ("gpt2", False)])
def test_where_a_file_says_nothing_of_bos_llama_cpps_default_holds(tmp_path, model, adds):
    assert read_gguf_facts(write(tmp_path / "m.gguf", model=model)).adds_bos is adds


def test_what_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"no GGUF at all, but long enough for a header")
    with pytest.raises(ValueError, match="GGUF"):
        read_gguf_facts(tmp_path / "m.gguf")


def test_a_type_that_does_not_fit_the_model_is_told():
    mixed = GgufFacts({"Q5_0": 180, "Q4_K": 30}, False, None, "llama")
    assert _types_notice("q4_k_m", mixed).endswith(
        "few are Q4_K, whose blocks of 256 values do not divide this model's rows"
    )
    assert _types_notice("q4_k_m", GgufFacts({"Q4_K": 180, "Q6_K": 30}, False, None, "llama")) == (
        "210 matrices: 180 Q4_K, 30 Q6_K"
    )
