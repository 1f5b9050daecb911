from __future__ import annotations

import struct
import tracemalloc

import pytest

from hf_recipes.checkpoints.verification.gguf_files import gguf_damage
from hf_recipes.cli.main import main


def write_gguf(file):
    import gguf
    import numpy as np

    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_token_list([f"word {number}" for number in range(50)])
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.ones((32, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("kept", [0, 2, 20, 300, 0.5, 0.9, -1])
def test_a_cut_file_is_damaged_wherever_it_is_cut(kept, tmp_path):
    file = write_gguf(tmp_path / "model.gguf")
    assert gguf_damage(file) is None
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    assert "is cut, or no GGUF file" in gguf_damage(file)


def test_another_file_of_that_name_is_damaged(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04" + bytes(5000))
    assert gguf_damage(tmp_path / "model.gguf")


def test_a_run_is_verified_with_the_forms_that_were_exported(tmp_path, capsys):
    run = tmp_path / "run"
    file = write_gguf(run / "exports" / "gguf-f16" / "model-f16.gguf")
    write_gguf(run / "exports" / ".sources.1.tmp" / "half.gguf").write_bytes(b"")  # what a killed export left
    (run / "run.json").write_text('{"recipe": {}}')
    assert main(["verify", str(run)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "gguf-f16: good" in line]
    file.write_bytes(file.read_bytes()[:-100])
    assert main(["verify", str(run)]) == 1
    assert "model-f16.gguf: is cut, or no GGUF file" in capsys.readouterr().out


def header(*facts, tensors=0, version=3, magic=b"GGUF"):
    """A header with key-value pairs given as bytes."""
    return magic + struct.pack("<IQQ", version, tensors, len(facts)) + b"".join(facts)


def key(name=b"k", kind=9):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind)


FORGED = {
    "a list of 2^60 bytes": header(key() + struct.pack("<IQ", 0, 1 << 60)),
    "a list of 2^60 texts": header(key() + struct.pack("<IQ", 8, 1 << 60)),
    "lists within lists": header(key() + struct.pack("<IQ", 9, 1) * 5000),
    "an endless name": header(struct.pack("<Q", 1 << 62)),
    "2^60 keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "2^60 tensors": header(tensors=1 << 60),
    "a tensor of 2^31 dimensions": header(tensors=1) + struct.pack("<Q1sI", 1, b"w", 1 << 31),
    "a tensor of 2^63 values": header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"w", 1, 1 << 63, 0, 0),
    "a tensor of no type": header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"w", 1, 1, 999, 0) + bytes(64),
    "no alignment": header(key(b"general.alignment", 4) + bytes(4)),
    "a value of no kind": header(key(kind=77) + bytes(64)),
    "another version": header(version=9),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_a_forged_header_costs_no_more_than_its_bytes(content, tmp_path):
    """gguf's own reader filled the memory with elements that are not there."""
    (tmp_path / "model.gguf").write_bytes(content)
    tracemalloc.start()
    told = gguf_damage(tmp_path / "model.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is cut, or no GGUF file (" in told
    assert peak < 8 << 20


def test_a_file_of_a_big_endian_machine_is_read(tmp_path):
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_custom_alignment(64)
    writer.add_token_scores([0.5] * 7)
    writer.add_tensor("w", np.ones((32, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert gguf_damage(tmp_path / "model.gguf") is None
