"""Files whose headers lie: lengths that no memory holds, offsets beyond the end, places outside; through the doors that
read models of strangers. Headers of safetensors by themselves are attacked in tests/core and in those of `verify`."""

from __future__ import annotations

import json
import struct

import pytest
from sampled import sampled

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.gguf import opened_base
from hf_recipes.export.bases.read import read_base
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.plan_job import load_config

MAGIC, STRING, ARRAY, UINT8 = b"GGUF", 8, 9, 0
HUGE = 2**62


def key(name: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name


def gguf(tensors: int, pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
    return MAGIC + struct.pack("<IQQ", version, tensors, pairs) + rest


NAME = key(b"general.architecture") + struct.pack("<I", STRING) + key(b"llama")
LIES = {
    "no header": MAGIC,
    "many tensors": gguf(HUGE, 1, NAME),
    "many pairs": gguf(0, HUGE, NAME),
    "a long key": gguf(0, 1, struct.pack("<Q", HUGE) + b"x"),
    "a long text": gguf(0, 1, key(b"general.architecture") + struct.pack("<IQ", STRING, HUGE)),
    "a long array": gguf(0, 1, key(b"x") + struct.pack("<IIQ", ARRAY, UINT8, HUGE)),
    "an array of arrays": gguf(0, 1, key(b"x") + struct.pack("<I", ARRAY) * 2000),
    "a kind that is none": gguf(0, 1, key(b"x") + struct.pack("<I", 99)),
    "a tensor of many dimensions": gguf(1, 1, NAME + key(b"t") + struct.pack("<I", 2**31)),
    "a tensor beyond all memory": gguf(
        1, 1, NAME + key(b"t") + struct.pack("<I", 2) + struct.pack("<QQ", HUGE, HUGE) + struct.pack("<IQ", 0, 0)
    ),
    "a tensor beyond the end": gguf(
        1, 1, NAME + key(b"t") + struct.pack("<I", 2) + struct.pack("<QQ", 4, 4) + struct.pack("<IQ", 0, HUGE)
    ),
    "another version": gguf(0, 0, version=2**31),
}


@pytest.fixture(params=sampled(LIES, ["many tensors", "a long array", "a tensor beyond all memory"]))
def lying(request, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(LIES[request.param])
    return file


def test_a_gguf_that_lies_is_no_base_to_merge_into(lying, tmp_path):
    with (
        pytest.raises(UserError, match=r"cannot be (read|dequantised)|GB free"),
        opened_base(lying, dtype="float32", scratch=tmp_path / "scratch"),
    ):
        pass


def test_a_gguf_that_lies_is_no_model_to_train(lying):
    with pytest.raises(UserError):
        load_config(Recipe("r", {"model_name_or_path": str(lying)}, frozenset()))


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", "..\\x", "C:\\x", ""]
)
def test_an_index_cannot_lead_out_of_a_base(name, tiny_model_dir, tmp_path):
    import shutil

    place = shutil.copytree(tiny_model_dir, tmp_path / "base")
    (place / "model.safetensors").unlink()
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(UserError):
        read_base(place)


@pytest.mark.parametrize(
    "index",
    ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"w": 3}}', "[" * 100_000, '{"weight_map": {"w": null}}'],
)
@pytest.mark.parametrize("verb", sampled(["verify", "merge"], ["verify"]))
def test_an_index_that_is_none_is_one_sentence(verb, index, tiny_model_dir, tmp_path, capsys):
    import shutil

    place = shutil.copytree(tiny_model_dir, tmp_path / "base")
    (place / "model.safetensors").unlink()
    (place / "model.safetensors.index.json").write_text(index)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(place), "r": 1, "target_modules": ["q_proj"]})
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    command = ["verify", str(place)] if verb == "verify" else ["merge", str(adapter), "--to", "bf16"]
    assert main(command) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_names_in_a_hostile_header_move_no_cursor(tmp_path, tiny_model_dir, capsys):
    import shutil

    import torch
    from safetensors.torch import save_file

    place = shutil.copytree(tiny_model_dir, tmp_path / "model")
    save_file({"\x1b]0;owned\x07\x1b[2J": torch.full((2,), float("nan"))}, place / "model.safetensors")
    for level in ("structure", "content", "reload"):
        assert main(["verify", str(place), "--level", level]) == 1
    told = capsys.readouterr()
    assert "owned" in told.out + told.err
    assert not set(told.out + told.err) & {"\x1b", "\x07"}
