from __future__ import annotations

import json
from collections import namedtuple

import pytest
import torch
from export_helpers import save_base
from transformers import AutoModelForCausalLM, GgufConfig

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.export.bases import gguf as gguf_module
from hf_recipes.export.bases.find import find_base
from hf_recipes.export.bases.gguf import opened_base, trained_dtype
from hf_recipes.export.bases.identity import check_identity
from hf_recipes.export.bases.read import read_base


@pytest.fixture
def gguf_file(tmp_path, tokenizer):
    """A random one-layer Llama: some matrices in blocks of 8 bits, some as float16, norms as float32."""
    import gguf
    import numpy as np

    file = tmp_path / "models" / "tiny.gguf"
    file.parent.mkdir()
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in (("block_count", 1), ("context_length", 256), ("embedding_length", 32), ("head_count", 4)):
        getattr(writer, f"add_{name}")(value)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(64)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    for role, number in (("bos", 1), ("eos", 2), ("pad", 2)):
        getattr(writer, f"add_{role}_token_id")(number)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    layer = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    random = np.random.default_rng(0)
    for name, shape in {"token_embd": (len(vocabulary), 32), "output_norm": (32,), **layer}.items():
        weight = random.normal(0, 0.2, shape).astype(np.float32)
        if "ffn" in name and len(shape) == 2:
            packed = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{name}.weight", weight.astype(np.float16) if len(shape) == 2 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_gguf_base_has_the_values_training_loads_and_leaves_nothing(tmp_path, gguf_file, dtype, caplog):
    live = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    ).state_dict()
    with caplog.at_level("INFO"), opened_base(gguf_file, dtype=dtype, scratch=tmp_path / "out") as directory:
        base = read_base(directory)
        values = {name: tensor.load() for name, tensor in base.tensors.items()}
        assert (directory / "tokenizer.json").is_file()
    tied = {"lm_head.weight"}
    assert set(values) == set(live) - tied
    assert all(value.dtype == getattr(torch, dtype) and torch.equal(value, live[n]) for n, value in values.items())
    assert "quantization_config" not in base.config
    assert "tiny.gguf was dequantised to" in caplog.text and " GB, " in caplog.text
    assert not directory.exists() and not (tmp_path / "out").exists()


def test_what_fails_in_a_merge_leaves_nothing_of_the_gguf_base(tmp_path, gguf_file):
    with pytest.raises(KeyError), opened_base(gguf_file, dtype="float32", scratch=tmp_path, tokenizer=False) as place:
        assert not (place / "tokenizer.json").exists()
        raise KeyError("in the merge")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_directory_is_opened_as_it_is(tmp_path):
    base = save_base(tmp_path / "base")
    with opened_base(base, dtype="float32", scratch=tmp_path / "none") as directory:
        assert directory == base
    assert base.is_dir() and not (tmp_path / "none").exists()


def test_a_disk_that_is_too_full_is_told_before(tmp_path, gguf_file, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(gguf_module.shutil, "disk_usage", lambda _: usage(10**12, 0, 10**6))
    with (
        pytest.raises(UserError, match=r"Dequantised, '.*tiny\.gguf' needs 0\.00 GB"),
        opened_base(gguf_file, dtype="float32", scratch=tmp_path / "out"),
    ):
        pass
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("length", [0, 3, 100, 2000])
def test_a_damaged_gguf_file_is_one_sentence(tmp_path, gguf_file, length):
    gguf_file.write_bytes(gguf_file.read_bytes()[:length])
    with (
        pytest.raises(UserError, match="cannot be read as GGUF") as error,
        opened_base(gguf_file, dtype="float32", scratch=tmp_path / "out"),
    ):
        pass
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_a_gguf_file_is_found_by_flag_by_name_and_by_the_run(gguf_file):
    name, directory = str(gguf_file), str(gguf_file.parent)
    assert find_base({"base_model_name_or_path": "some/model"}, name, {}) == gguf_file
    assert find_base({"base_model_name_or_path": name}, None, {}) == gguf_file
    assert find_base({"base_model_name_or_path": directory}, None, {"name_or_path": name}) == gguf_file
    assert find_base({"base_model_name_or_path": directory}, directory, {"name_or_path": name}) == gguf_file.parent
    other = {"name_or_path": str(gguf_file.with_name("gone.gguf"))}
    with pytest.raises(UserError, match=r"'.*gone\.gguf' is not a directory here"):
        find_base({"base_model_name_or_path": directory}, None, other)


def test_m13_a_gguf_file_is_told_from_others_and_from_the_model_it_was_made_from(tmp_path, gguf_file):
    recorded = {"name_or_path": str(gguf_file), "weights_sha256": {gguf_file.name: sha256_of_file(gguf_file)}}
    assert check_identity(gguf_file, recorded, allow_other=False) == "same"
    original = save_base(tmp_path / "original")
    for record in (recorded, {"name_or_path": str(gguf_file), "weights_sha256": None}):
        with pytest.raises(UserError, match=r"is not the one the adapter was trained on \(.*tiny\.gguf"):
            check_identity(original, record, allow_other=False)
    with pytest.raises(UserError, match="trained on 'some/model'"):
        check_identity(gguf_file, {"name_or_path": "some/model"}, allow_other=False)
    assert check_identity(gguf_file, {"name_or_path": str(gguf_file)}, allow_other=False) == "unknown"
    with open(gguf_file, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(UserError, match=r"other bytes in tiny\.gguf"):
        check_identity(gguf_file, recorded, allow_other=False)


@pytest.mark.parametrize(("run", "dtype"), [({}, "float32"), ({"precision": {"dtype": "bfloat16"}}, "bfloat16")])
def test_the_dtype_of_training_is_taken_from_the_run(run, dtype):
    assert trained_dtype(run) == dtype
