"""Files from elsewhere: nothing is run, nothing outside is opened, nothing is unpacked without bound."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import struct
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.archives import read_torch_file
from hf_recipes.checkpoints.verification.pickles import COMPUTED, foreign_names, names_in
from hf_recipes.checkpoints.verification.scan import list_files
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.bounded_json import MAX_ITEMS
from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import tensor_files

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file({"w": torch.ones(4, 4)}, directory / MODEL)
    return directory


def problems(directory, *words, level="structure"):
    report = verify_checkpoint(directory, level)
    return [str(problem) for problem in report.problems if all(word in str(problem) for word in words)]


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "sub/../../outside.safetensors"])
@pytest.mark.parametrize("level", ["structure", "reload"])
def test_an_index_that_leads_out_of_its_directory_is_a_problem_and_not_followed(name, level, model, tmp_path):
    save_file({"w": torch.ones(4, 4)}, tmp_path / "outside.safetensors")
    name = name.replace("/outside", f"{tmp_path}/outside", 1) if name.startswith("/") else name
    (model / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    assert problems(model, INDEX, "outside its directory", level=level)
    with pytest.raises(UserError, match="outside its directory"):
        tensor_files(model)


@pytest.mark.parametrize("name", ["..\\outside.safetensors", "C:\\outside.safetensors", "\\\\server\\share\\x", ""])
def test_an_index_that_leads_out_on_windows_is_a_problem_everywhere(name, model):
    (model / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    assert problems(model, INDEX, "outside its directory")


@pytest.mark.parametrize("level", ["structure", "content", "reload"])
def test_links_out_of_the_directory_and_to_nothing_are_problems(level, model, tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "outside.safetensors")
    (tmp_path / "folder").mkdir()
    (model / "linked.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (model / "dangling.json").symlink_to(tmp_path / "nothing")
    (model / "circle.json").symlink_to(model / "circle.json")
    (model / "folder").symlink_to(tmp_path / "folder")
    (model / "inside.safetensors").symlink_to(MODEL)
    found = problems(model, level=level)
    assert len(found) == 4
    assert len([problem for problem in found if "links out of the directory" in problem]) == 2
    assert list_files(model) == ["inside.safetensors", MODEL]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["config.json", "extra.safetensors", "optimizer.pt", "notes.txt", "manifest.json"])
def test_a_pipe_is_a_problem_and_is_not_opened_which_would_wait_for_ever(name, model):
    os.mkfifo(model / name)
    found = []
    thread = threading.Thread(target=lambda: found.extend(problems(model, name, "device, pipe")), daemon=True)
    thread.start()
    thread.join(60)
    assert found


def test_a_file_that_cannot_be_read_is_a_problem_and_hides_no_other(model, monkeypatch):
    (model / "config.json").write_text("{broken")

    def refuse(file, *arguments):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("hf_recipes.checkpoints.verification.scan.read_header", refuse)
    assert problems(model, MODEL, "Permission denied")
    assert problems(model, "config.json", "not JSON")


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def evil_zip(file: Path, content: bytes) -> None:
    torch.save({"w": torch.ones(2)}, file)
    with zipfile.ZipFile(file) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, record in records.items():
            archive.writestr(name, content if name.endswith("data.pkl") else record)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["optimizer.pt", "training_args.bin", "rng_state.pth", "pytorch_model.bin"])
def test_a_pickle_that_runs_something_is_named_and_not_run(name, zipped, protocol, model, tmp_path):
    content = pickle.dumps({"state": Calls(os.mkdir, str(tmp_path / "was run"))}, protocol=protocol)
    if zipped:
        evil_zip(model / name, content)
    else:
        (model / name).write_bytes(content)
    (found,) = problems(model, name)
    assert "posix.mkdir" in found or "nt.mkdir" in found
    assert "do not load" in found
    assert not (tmp_path / "was run").exists()


def test_names_behind_memo_entries_are_followed():
    """`os.system` by STACK_GLOBAL whose two texts were kept long before, with other texts in between."""
    code = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x8c\x05harms\x8c\x04less" + b"00h\x00h\x01\x93\x8c\x02ls\x85R."
    assert names_in(io.BytesIO(code)) == {"os.system"}


def test_a_name_put_together_at_load_time_is_told_as_such():
    code = b"\x80\x04c_codecs\nencode\n\x8c\x02os\x85R\x8c\x06system\x93."
    assert names_in(io.BytesIO(code)) == {"_codecs.encode", COMPUTED}
    assert foreign_names({COMPUTED}) == (COMPUTED,)


@pytest.mark.parametrize(
    "name",
    [
        "builtins.eval",
        "builtins.getattr",
        "torch.hub.load",
        "torch.load",
        "torch.storage._load_from_bytes",
        "numpy.load",
        "transformers.training_args.os.system",
        "transformers.trainer_utils.set_seed",
        "collections.OrderedDict.fromkeys",
        "hf_recipes.core.files.write_text",
        "__main__.Arguments",
        "functools.partial",
        "operator.attrgetter",
        "extension 3",
    ],
)
def test_names_that_could_run_something_are_foreign(name):
    assert foreign_names({name}) == (name,)


def test_all_that_torchs_own_safe_loader_takes_is_known():
    from torch._weights_only_unpickler import _get_allowed_globals

    assert foreign_names(set(_get_allowed_globals())) == ()


@pytest.mark.parametrize(
    "name",
    [
        "axolotl.core.training_args.AxolotlTrainingArguments",
        "llamafactory.hparams.training_args.TrainingArguments",
        "alignment.configs.SFTConfig",
        "transformers.deepspeed.HfTrainerDeepSpeedConfig",
    ],
)
def test_the_configurations_that_trainers_of_others_leave_are_known(name):
    assert foreign_names({name}) == ()


def test_the_users_own_classes_are_noted_in_the_users_own_run_and_refused_elsewhere(model):
    class_of_mine = pickle.dumps(collections.UserDict(a=1))
    (model / "training_args.bin").write_bytes(class_of_mine)
    assert problems(model, "training_args.bin", "collections.UserDict")
    report = verify_checkpoint(model, "structure", own=True)
    assert report.ok
    assert any("UserDict" in note for note in report.notes)


def test_real_files_of_torch_are_known(tmp_path):
    import torch.distributed.checkpoint as distributed
    from trl import SFTConfig

    state = {"a": torch.ones(5), "step": 7, "nested": {"b": torch.ones(2, dtype=torch.bfloat16), "c": [1, 2.5, "x"]}}
    distributed.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False), tmp_path / "training_args.bin")
    files = [*(tmp_path / "dcp").iterdir(), *(path for path in tmp_path.iterdir() if path.is_file())]
    assert len(files) == 5
    for file in files:
        found = read_torch_file(file, checksums=True)
        assert (found.damage, found.foreign) == (None, ()), file.name


def test_every_archive_of_a_distributed_checkpoints_file_is_read(tmp_path):
    harmless, evil = io.BytesIO(), tmp_path / "evil.pt"
    torch.save(torch.ones(3), harmless)
    evil_zip(evil, pickle.dumps(Calls(os.getpid), protocol=2))
    for order in ([evil.read_bytes(), harmless.getvalue()], [harmless.getvalue(), evil.read_bytes()]):
        file = tmp_path / "__0_0.distcp"
        file.write_bytes(b"".join([*order, harmless.getvalue()]))
        assert read_torch_file(file, checksums=False).foreign == ("posix.getpid",)


def test_an_archive_that_begins_as_a_pickle_is_read_as_torch_reads_it(tmp_path):
    harmless = io.BytesIO()
    torch.save({"w": 1}, harmless)
    file = tmp_path / "optimizer.pt"
    file.write_bytes(pickle.dumps(Calls(os.getpid), protocol=2) + harmless.getvalue())
    assert zipfile.is_zipfile(file)
    assert read_torch_file(file, checksums=False).foreign == ("posix.getpid",)


def test_a_bomb_is_not_unpacked(tmp_path):
    file = tmp_path / "optimizer.pt"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", bytes(50_000_000))
    assert "would unpack to 50,000" in (read_torch_file(file, checksums=True).damage or "")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", os.urandom(1_000_000) + bytes(70_000_000))
    assert "pickle of 71,000,000 bytes" in (read_torch_file(file, checksums=False).damage or "")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_nested_without_end_and_numbers_without_end_are_damage(text, model):
    (model / "config.json").write_text(text)
    assert problems(model, "config.json")


def test_json_beyond_the_bounds_is_not_parsed_and_that_is_told(model, monkeypatch):
    (model / "trainer_state.json").write_text("[" + "[]," * (MAX_ITEMS // 2 + 1) + "1]")
    report = verify_checkpoint(model, "structure")
    assert report.ok
    assert any("trainer_state.json" in note and "not parsed" in note for note in report.notes)
    monkeypatch.setattr("hf_recipes.checkpoints.verification.scan.MAX_JSON_BYTES", 1000)
    report = verify_checkpoint(model, "structure")
    assert any("trainer_state.json is larger" in note for note in report.notes)


def raw_file(file: Path, header: str | bytes, data: bytes = b"") -> None:
    content = header.encode() if isinstance(header, str) else header
    file.write_bytes(struct.pack("<Q", len(content)) + content + data)


SOUND = '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (SOUND.replace("[1]", "[-1,-1]"), "negative"),
        (SOUND.replace("[1]", f"[{2**40},{2**40},0]").replace("4]", "0]"), "beyond all memory"),
        (SOUND.replace("[1]", "[1.0]"), "no readable"),
        (SOUND.replace("[1]", "[true]"), "no readable"),
        (SOUND.replace("[1]", '"1"'), "no readable"),
        (SOUND.replace("[0,4]", "[-4,0]"), "does not fill"),
        (SOUND[:-1] + "," + SOUND[1:], "names 'w' twice"),
        ('{"w":' + "[" * 200_000, "nested too deeply"),
        ('{"a":[' + "[]," * MAX_ITEMS + "1]}", "not parsed"),
        ('{"__metadata__":{"a":1},' + SOUND[1:], "__metadata__"),
        (SOUND.encode("utf-16"), "not JSON"),
        ('{"\\ud800":' + SOUND[5:], "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "header",
)
def test_bombs_and_tricks_in_a_header_are_damage(header, words, model):
    raw_file(model / MODEL, header, bytes(4) if words != "beyond all memory" else b"")
    assert problems(model, MODEL, words)


def test_a_link_that_leads_out_is_not_hashed_into_a_manifest(model, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (model / "secret.txt").symlink_to(tmp_path / "secret.txt")
    manifest = write_manifest(model)
    assert manifest.files["secret.txt"].sha256 is None
