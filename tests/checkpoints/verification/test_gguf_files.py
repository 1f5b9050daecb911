from __future__ import annotations

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
