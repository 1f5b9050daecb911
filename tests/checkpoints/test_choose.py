from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
import torch
from checkpoint_helpers import LossRecorder, lora_config, make_trainer, read_losses

from hf_recipes import UserError
from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_verified, write_verified

# 6 steps an epoch, so the resumed steps lie in the second one, with another order of rows.
LONG = {"rows": 24, "max_steps": 9, "save_steps": 7}


def without_marks(run):
    """As a Trainer leaves it that knows nothing of manifests."""
    for mark in [*run.glob("*/manifest.json"), *run.glob("*/verified.json")]:
        mark.unlink()


def make_zero(checkpoint, ranks):
    """Turn a checkpoint into what DeepSpeed's ZeRO-2 leaves on some ranks (names and places, not the contents)."""
    (checkpoint / "global_step2").mkdir()
    (checkpoint / "latest").write_text("global_step2")
    (checkpoint / "optimizer.pt").unlink()
    shutil.copy(checkpoint / "rng_state.pth", checkpoint / "global_step2" / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        part = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        shutil.copy(checkpoint / "rng_state.pth", checkpoint / "global_step2" / part)
        shutil.copy(checkpoint / "rng_state.pth", checkpoint / f"rng_state_{rank}.pth")
    (checkpoint / "rng_state.pth").unlink()
    without_marks(checkpoint.parent)


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


def test_the_newest_is_last_when_it_is_good(full_run):
    last = last_good_checkpoint(full_run)
    assert (last.path, last.skipped, last.proven) == (full_run / "checkpoint-2", [], True)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_c1_a_cut_file_passes_the_checkpoint_over_and_names_it(full_run, name, manifest):
    if not manifest:
        without_marks(full_run)
    cut(full_run / "checkpoint-2" / name)
    last = last_good_checkpoint(full_run)
    assert last.path == full_run / "checkpoint-1"
    assert last.proven is manifest
    ((skipped, reason),) = last.skipped
    assert skipped == full_run / "checkpoint-2"
    assert name in reason


def test_c1_a_half_written_and_an_empty_directory_are_passed_over(full_run):
    half = full_run / "checkpoint-3"
    half.mkdir()
    shutil.copy(full_run / "checkpoint-2" / "model.safetensors", half)
    (full_run / "checkpoint-4").mkdir()
    last = last_good_checkpoint(full_run)
    assert last.path == full_run / "checkpoint-2"
    assert [path.name for path, _ in last.skipped] == ["checkpoint-4", "checkpoint-3"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
@pytest.mark.parametrize("manifest", [True, False])
def test_c4_a_checkpoint_without_what_the_trainer_needs_is_passed_over(full_run, name, manifest):
    checkpoint = full_run / "checkpoint-2"
    (checkpoint / name).unlink()
    if not manifest:
        without_marks(full_run)
    ((skipped, reason),) = last_good_checkpoint(full_run).skipped
    assert skipped == checkpoint
    assert name.split(".")[0].removesuffix("_state") in reason or "weights" in reason


def test_where_manifests_are_written_a_checkpoint_without_one_was_not_finished(full_run):
    (full_run / "checkpoint-2" / "manifest.json").unlink()
    last = last_good_checkpoint(full_run)
    assert last.path == full_run / "checkpoint-1"
    ((skipped, reason),) = last.skipped
    assert skipped == full_run / "checkpoint-2"
    assert reason == "its save was not finished: it has no manifest.json, which is written last"


@pytest.mark.parametrize("sign", ["run.json", ".writer.lock"])
def test_c1_the_first_save_of_a_run_of_ours_counts_only_once_it_has_its_manifest(sign, full_run):
    without_marks(full_run)
    assert last_good_checkpoint(full_run).path == full_run / "checkpoint-2"
    (full_run / sign).write_text("{}")
    assert last_good_checkpoint(full_run).path is None


def test_a_foreign_checkpoint_is_taken_after_form_and_values_and_that_is_said(full_run, caplog):
    without_marks(full_run)
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        assert resolve_resume("last", full_run) == full_run / "checkpoint-2"
    assert "sound in form and values, but no manifest proves it" in caplog.text


def test_the_state_of_another_step_is_passed_over(full_run):
    without_marks(full_run)
    shutil.copy(full_run / "checkpoint-1" / "trainer_state.json", full_run / "checkpoint-2")
    assert last_good_checkpoint(full_run).path == full_run / "checkpoint-1"


def test_a_checkpoint_that_did_not_verify_when_written_is_passed_over_though_its_bytes_are_as_written(full_run):
    problems = ["model.safetensors: differs from the model in memory"]
    write_verified(full_run / "checkpoint-2", level="reload", ok=False, seconds=0.1, problems=problems)
    ((_, reason),) = last_good_checkpoint(full_run).skipped
    assert "differs from the model in memory" in reason


def test_a_good_mark_alone_is_not_enough(full_run):
    content = bytearray((full_run / "checkpoint-2" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (full_run / "checkpoint-2" / "model.safetensors").write_bytes(content)
    assert read_verified(full_run / "checkpoint-2")["ok"]
    assert last_good_checkpoint(full_run).path == full_run / "checkpoint-1"


def test_random_states_of_several_ranks_must_all_be_there(full_run):
    checkpoint = full_run / "checkpoint-2"
    without_marks(full_run)
    (checkpoint / "rng_state.pth").rename(checkpoint / "rng_state_0.pth")
    ((_, reason),) = last_good_checkpoint(full_run).skipped
    assert "rng_state_1.pth" in reason
    shutil.copy(checkpoint / "rng_state_0.pth", checkpoint / "rng_state_1.pth")
    assert last_good_checkpoint(full_run).path == checkpoint


@pytest.mark.parametrize("value", [None, False, ""])
def test_no_resume_is_a_fresh_start(value, full_run):
    assert resolve_resume(value, full_run) is None


def test_last_names_what_it_passes_over(full_run, caplog):
    cut(full_run / "checkpoint-2" / "optimizer.pt")
    with caplog.at_level(logging.INFO, "hf_recipes"):
        assert resolve_resume("last", full_run) == full_run / "checkpoint-1"
    assert resolve_resume(True, full_run) == full_run / "checkpoint-1"
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("checkpoint-2 is passed over" in warning and "optimizer.pt" in warning for warning in warnings)


def test_c1_a_run_never_restarts_from_zero_by_itself(full_run, tmp_path):
    for checkpoint in full_run.glob("checkpoint-*"):
        cut(checkpoint / "model.safetensors")
    with pytest.raises(UserError, match=r"none of its 2 checkpoints is good.*leaving resume_from_checkpoint out"):
        resolve_resume("last", full_run)
    with pytest.raises(UserError, match="holds no checkpoint"):
        resolve_resume("last", tmp_path / "nothing")


def test_a_path_must_be_good_and_the_newest_good_one_is_named(full_run):
    assert resolve_resume(str(full_run / "checkpoint-1"), full_run) == full_run / "checkpoint-1"
    cut(full_run / "checkpoint-2" / "optimizer.pt")
    with pytest.raises(UserError, match=r"optimizer.pt.*newest good one is '.*checkpoint-1'"):
        resolve_resume(full_run / "checkpoint-2", full_run)
    with pytest.raises(UserError, match=r"is not there; the newest good one is '.*checkpoint-1'"):
        resolve_resume(full_run / "checkpoint-9", full_run)
    with pytest.raises(UserError, match=r"cannot be resumed.*newest good one is '.*checkpoint-1'"):
        resolve_resume(full_run, full_run)


def test_c6_another_number_of_ranks_is_said_in_one_sentence(full_run, caplog, monkeypatch):
    monkeypatch.setattr("hf_recipes.checkpoints.choose.world_size", lambda: 2)
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        resolve_resume("last", full_run)
    assert "written by 1 process and is resumed by 2" in caplog.text


def test_c6_parts_of_zero_are_refused_to_another_number_of_ranks(full_run, monkeypatch):
    monkeypatch.setattr("hf_recipes.checkpoints.choose.world_size", lambda: 4)
    make_zero(full_run / "checkpoint-2", ranks=2)
    with pytest.raises(UserError, match=r"written by 2 processes, and DeepSpeed cannot cut .* for 4: start with "):
        resolve_resume("last", full_run)


@pytest.mark.parametrize(("value", "lost"), [("auto", 0), ("auto", 1), ("last", 1)])
def test_auto_is_last_where_there_are_checkpoints(value, lost, full_run):
    for checkpoint in sorted(full_run.glob("checkpoint-*"))[2 - lost :]:
        cut(checkpoint / "model.safetensors")
    assert resolve_resume(value, full_run) == full_run / f"checkpoint-{2 - lost}"


def test_c1_auto_starts_only_where_no_save_was_ever_finished(full_run, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hf_recipes")
    assert resolve_resume("auto", tmp_path / "nothing") is None
    assert "holds no checkpoint, so the run starts" in caplog.text
    for checkpoint in full_run.glob("checkpoint-*"):
        cut(checkpoint / "model.safetensors")
    with pytest.raises(UserError, match="none of its 2 checkpoints is good"):
        resolve_resume("auto", full_run)


def test_c1_auto_starts_anew_when_the_first_save_of_all_was_cut_short(full_run, caplog):
    shutil.rmtree(full_run / "checkpoint-2")
    without_marks(full_run)
    events = (full_run / "events.jsonl").read_text()
    (full_run / "events.jsonl").unlink()
    (full_run / "run.json").write_text("{}")
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        assert resolve_resume("auto", full_run) is None
    assert "the first save of this run, " in caplog.text
    (full_run / "events.jsonl").write_text(events)  # it tells of a save that was finished: then something is lost
    with pytest.raises(UserError, match="none of its 1 checkpoints is good"):
        resolve_resume("auto", full_run)
    with pytest.raises(UserError, match="none of its 1 checkpoints is good"):
        resolve_resume("last", full_run)


@pytest.mark.parametrize("lora", [None, lora_config()], ids=["full", "lora"])
def test_c4_c5_a_resumed_run_has_the_losses_of_the_unbroken_run(lora, tmp_path):
    """Weights, optimizer, schedule, shuffled data order and dropout all continue: the losses agree to the bit."""
    make_trainer(tmp_path / "a", [LossRecorder(tmp_path / "a.jsonl"), CheckpointKeeper()], lora=lora, **LONG).train()
    cut_off = tmp_path / "a" / "checkpoint-9"
    cut(cut_off / "optimizer.pt")
    checkpoint = resolve_resume("last", tmp_path / "a")
    assert checkpoint == tmp_path / "a" / "checkpoint-7"
    trainer = make_trainer(tmp_path / "b", [LossRecorder(tmp_path / "b.jsonl"), CheckpointKeeper()], lora=lora, **LONG)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    unbroken, resumed = read_losses(tmp_path / "a.jsonl"), read_losses(tmp_path / "b.jsonl")
    assert sorted(resumed) == [8, 9]
    assert resumed == {step: unbroken[step] for step in resumed}


def test_c4_without_the_optimizer_the_losses_would_differ(tmp_path):
    """The counterpart of the test above: it can fail."""
    make_trainer(tmp_path / "a", [LossRecorder(tmp_path / "a.jsonl")], **LONG).train()
    checkpoint = tmp_path / "a" / "checkpoint-7"
    (checkpoint / "optimizer.pt").unlink()
    trainer = make_trainer(tmp_path / "b", [LossRecorder(tmp_path / "b.jsonl")], **LONG)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert read_losses(tmp_path / "b.jsonl")[9] != read_losses(tmp_path / "a.jsonl")[9]


def test_it_reads_json_only_where_json_is_sound(full_run):
    (full_run / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(["not", "a", "state"]))
    assert last_good_checkpoint(full_run).path == full_run / "checkpoint-1"


class _Hostile:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("file", ["rng_state.pth", "optimizer.pt", "scheduler.pt"])
def test_c5_a_state_that_would_run_code_when_loaded_is_passed_over_unloaded(file, full_run, tmp_path):
    """Also where no manifest says that it was exchanged: torch would refuse it, or, asked for more, run it."""
    without_marks(full_run)
    torch.save({"python": _Hostile(tmp_path / "was run")}, full_run / "checkpoint-2" / file)
    last = last_good_checkpoint(full_run)
    assert last.path == full_run / "checkpoint-1"
    ((_, reason),) = last.skipped
    assert "do not load it" in reason
    assert not (tmp_path / "was run").exists()
