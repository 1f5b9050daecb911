"""A sample of the trials in benchmarks/checkpoint_faults.py; all of them with ``-m trials``, as `.ci/full` does.

And proof that their judges can say no.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_helpers import LossRecorder, make_trainer, one_thread
from faults.at_rest import same_files, try_at_rest
from faults.catalogue import Fault, faults_of
from faults.damage import flip, flip_matters, tensor_ranges
from faults.killing import IN_A_SAVE, differences
from faults.tally import FOUND, REFUSED, SKIPPED, UNDETECTED, Outcome, table
from faults.tiny_kinds import Place

from hf_recipes.checkpoints.keeper import CheckpointKeeper

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "checkpoint_faults.py"


def run_trials(report, *options):
    """The outcomes of a run of the benchmark, which must end well."""
    command = [sys.executable, str(SCRIPT), "--json", str(report), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return [Outcome(**outcome) for outcome in json.loads(report.read_text())]


@pytest.mark.slow
def test_c1_after_kills_a_good_checkpoint_is_there_and_the_run_ends_as_if_never_stopped(tmp_path):
    outcomes = run_trials(tmp_path / "report.json", "--kills", 4, "--steps", 8, "--part", 0.06, "--only", "SIGKILL")
    assert not any(outcome.bad for outcome in outcomes)
    kills = [outcome for outcome in outcomes if outcome.kind.startswith("SIGKILL")]
    assert len(kills) == 4
    assert any(outcome.said == IN_A_SAVE for outcome in kills)


@pytest.mark.slow
@pytest.mark.trials
def test_no_fault_leads_to_a_corrupt_checkpoint_being_used_and_no_verified_work_is_lost(tmp_path):
    outcomes = run_trials(tmp_path / "report.json")
    assert sum(outcome.verdict != SKIPPED for outcome in outcomes) >= 500
    assert sum(outcome.kind.startswith("SIGKILL") for outcome in outcomes) >= 200


@pytest.fixture(scope="module")
def three_checkpoints(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("three"))
    place.output.mkdir()
    with one_thread():
        make_trainer(place.output, [LossRecorder(place.losses), CheckpointKeeper()], max_steps=3).train()
    return place


def test_a_sample_of_damage_at_rest_is_found(three_checkpoints, tmp_path):
    chance = random.Random(3)
    faults = chance.sample(faults_of(three_checkpoints.output / "checkpoint-3", chance), 40)
    outcomes = [try_at_rest(fault, three_checkpoints.output, tmp_path) for fault in faults]
    assert [outcome for outcome in outcomes if outcome.verdict != FOUND] == []


def test_every_kind_of_damage_changes_the_checkpoint(three_checkpoints, tmp_path):
    pristine = three_checkpoints.output
    damaged = shutil.copytree(pristine, tmp_path / "run") / "checkpoint-3"
    faults = faults_of(pristine / "checkpoint-3", random.Random(4))
    for fault in {fault.kind: fault for fault in reversed(faults)}.values():
        fault.apply(damaged)
        assert not same_files(damaged, pristine / "checkpoint-3"), fault.name
        shutil.rmtree(damaged)
        shutil.copytree(pristine / "checkpoint-3", damaged)


def test_the_judge_says_when_a_checkpoint_that_should_be_bad_is_taken(three_checkpoints, tmp_path):
    nothing = Fault("kind", "nothing at all", lambda checkpoint: None)
    assert try_at_rest(nothing, three_checkpoints.output, tmp_path).verdict == UNDETECTED


def test_the_judge_says_when_a_good_checkpoint_is_refused(three_checkpoints, tmp_path):
    def cut(checkpoint):
        (checkpoint / "model.safetensors").write_bytes(b"")

    harmless = Fault("kind", "believed to be harmless", cut, harmful=False)
    assert try_at_rest(harmless, three_checkpoints.output, tmp_path).verdict == REFUSED


@pytest.mark.parametrize("change", ["a loss", "a step", "the weights"])
def test_a_run_that_did_not_end_as_the_unbroken_one_is_told(three_checkpoints, tmp_path, change):
    other = Place(shutil.copytree(three_checkpoints.directory, tmp_path / "other"))
    assert differences(other, three_checkpoints, 3) == ""
    lines = other.losses.read_text().splitlines()
    if change == "a loss":  # of an attempt whose step was done again, and rightly, later
        lines = [lines[0], lines[1].replace("4.", "5."), *lines[1:]]
    elif change == "a step":
        lines = lines[:1] + lines[2:]
    else:
        weights = other.output / "checkpoint-3" / "model.safetensors"
        flip(weights, tensor_ranges(weights)[2].start, 0)
    other.losses.write_text("\n".join(lines))
    assert differences(other, three_checkpoints, 3)


def test_a_flip_that_changes_no_value_is_not_counted_as_a_fault(tmp_path):
    file = tmp_path / "some.json"
    file.write_text('{"rate": 1e-05}')
    assert not flip_matters(file, file.read_text().index("e-05"), 5)  # 1E-05
    assert flip_matters(file, file.read_text().index("1"), 0)
    assert flip_matters(file, 0, 0)


def test_the_table_counts_what_could_not_be_tried_apart():
    tried = [Outcome("a", "1", FOUND), Outcome("a", "2", UNDETECTED), Outcome("b", "3", SKIPPED, "no rights")]
    rows = table(tried).splitlines()
    assert rows[2] == "| a | 2 | 1 | 1 | 0 | 0 | 0 |"
    assert rows[3] == "| b | skipped: no rights | | | | | |"
    assert rows[4].startswith("| **all** | 2 | 1 | 1 ")
