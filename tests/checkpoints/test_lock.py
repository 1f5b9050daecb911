"""One run writes into a directory; real processes hold the lock."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager

import pytest
from checkpoint_helpers import make_trainer

from hf_recipes import UserError
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.lock import LOCK_NAME, TakenDirectory, only_writer, release_lock, take_lock
from hf_recipes.cli.main import main
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.run import train


@contextmanager
def held_by_another_process(directory):
    """A child that takes the lock and keeps it until it is killed; its process id."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            take_lock(directory)
            os.write(write, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.read(read, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_a_second_run_is_refused_in_one_sentence_before_its_first_step(tmp_path):
    trainer = make_trainer(tmp_path, [CheckpointKeeper()])
    with held_by_another_process(tmp_path) as holder:
        with pytest.raises(UserError) as refusal:
            trainer.train()
        assert f"'{tmp_path}' is being written by another run (process {holder} on " in str(refusal.value)
        assert "since 20" in str(refusal.value)
        assert trainer.state.global_step == 0
    trainer.train()  # its holder was killed: the lock is free
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_second_run_of_a_recipe_touches_nothing_of_the_first(tmp_path, tiny_model_dir, capsys):
    """Neither in this process, where `hf-recipes sft` looks first, nor on the ranks."""
    rows, output = tmp_path / "rows.jsonl", tmp_path / "run"
    rows.write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [{{path: {rows}}}]\nmax_steps: 1\noverfit_check: off\n"
    )
    output.mkdir()
    with held_by_another_process(output):
        before = {path.name: path.read_bytes() for path in output.iterdir()}
        assert main(["sft", "--config", str(recipe), "--output_dir", str(output)]) == 2
        assert "is being written by another run" in capsys.readouterr().err
        with pytest.raises(TakenDirectory):
            train(load_recipe(str(recipe), ["--output_dir", str(output)]))
        assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_the_same_process_may_take_it_again_and_gives_it_back_as_often(tmp_path):
    take_lock(tmp_path)
    take_lock(tmp_path)
    release_lock(tmp_path)
    assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
    release_lock(tmp_path)
    assert not (tmp_path / LOCK_NAME).exists()
    release_lock(tmp_path)  # not held: nothing happens


def test_a_forked_child_that_lives_on_does_not_hold_the_lock(tmp_path):
    with held_by_another_process(tmp_path / "other"):
        pass
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            take_lock(tmp_path)
            if os.fork() == 0:
                os.write(write, str(os.getpid()).encode())  # it runs, so what is done after a fork is done
                signal.pause()
        finally:
            os._exit(0)  # as a killed run: the lock is not released by itself
    worker = int(os.read(read, 20))
    os.waitpid(holder, 0)
    try:
        take_lock(tmp_path)
        release_lock(tmp_path)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_lock_file_that_nobody_holds_is_no_hindrance(tmp_path):
    (tmp_path / LOCK_NAME).write_text("{")
    take_lock(tmp_path)
    release_lock(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_to_is_told_before_the_first_step(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission denied"):
        take_lock(tmp_path)


def test_holding_the_lock_makes_no_foreign_checkpoint_one_that_was_never_finished(full_run):
    """A run of ours resumes what another trainer has left in the same directory."""
    for checkpoint in full_run.glob("checkpoint-*"):
        for mark in ("manifest.json", "verified.json"):
            (checkpoint / mark).unlink()
    with only_writer(full_run):
        assert last_good_checkpoint(full_run).path == full_run / "checkpoint-2"
    (full_run / LOCK_NAME).write_text("{}")  # left by a keeper that was killed before its first manifest
    assert last_good_checkpoint(full_run).path is None
    with only_writer(full_run):
        assert last_good_checkpoint(full_run).path is None
