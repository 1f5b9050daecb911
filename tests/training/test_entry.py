"""What a rank does when it is asked to stop while it is not training."""

from __future__ import annotations

import json
import os
import signal

import pytest

from hf_recipes.core.errors import Preempted
from hf_recipes.models.source import ModelSource, one_sentence
from hf_recipes.training import entry
from hf_recipes.training.environment import LAUNCHED_BY_US


@pytest.fixture
def stopped(monkeypatch):
    """`run_on_ranks` whose training gets a signal before it has begun."""

    def run(number, arguments):
        monkeypatch.setattr(entry, "_train", lambda *_: os.kill(os.getpid(), number))
        monkeypatch.setattr(entry, "leave_with_parent", lambda _: None)
        before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)]
        code = entry.run_on_ranks("m:f", ["--config", "r", *arguments])
        for each, handler in zip((signal.SIGTERM, signal.SIGUSR1), before, strict=True):
            signal.signal(each, handler)
        return code

    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_before_the_training_a_signal_ends_the_run_at_once(number, stopped, monkeypatch, capsys):
    monkeypatch.delenv(LAUNCHED_BY_US, raising=False)
    assert stopped(number, []) == Preempted.exit_code
    assert f"stopped by {signal.Signals(number).name} while nothing was being trained" in capsys.readouterr().err


def test_under_our_launcher_the_status_says_so(stopped, tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCHED_BY_US, "1")
    assert stopped(signal.SIGTERM, ["--output_dir", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "status.json").read_text())["code"] == Preempted.exit_code


def test_a_status_that_is_there_is_not_overwritten(stopped, tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCHED_BY_US, "1")
    (tmp_path / "status.json").write_text('{"code": 75, "sentence": "saved"}')
    assert stopped(signal.SIGTERM, ["--output_dir", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "status.json").read_text())["sentence"] == "saved"


def test_without_a_signal_the_handlers_are_given_back(monkeypatch):
    monkeypatch.delenv(LAUNCHED_BY_US, raising=False)
    monkeypatch.setattr(entry, "_train", lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    assert entry.run_on_ranks("m:f", ["--config", "r"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_that_comes_while_a_model_is_loaded_is_no_fault_of_the_model():
    """Ranks that another rank's end stopped said "cannot be loaded: Preempted" and ended with 2."""
    with (
        pytest.raises(Preempted, match="stopped by SIGTERM"),
        one_sentence(ModelSource("base", None, "local directory")),
    ):
        raise Preempted("stopped by SIGTERM")
