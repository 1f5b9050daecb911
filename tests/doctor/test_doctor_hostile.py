"""What breaks readers, what looks like a fault and is none, and what must not be shown."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from hf_recipes.cli.main import main
from hf_recipes.core.files import expanded
from hf_recipes.doctor.environment.facts import Facts, Machine
from hf_recipes.doctor.environment.machine_rules import on_cores
from hf_recipes.doctor.log.diagnosis import diagnose_log, render
from hf_recipes.doctor.private import Hider

FRAME = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
OOM = FRAME + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
FULL = FRAME + "OSError: [Errno 28] No space left on device: 'checkpoint-5'\n"
TRAINED = "".join(f"{{'loss': {2 - 0.01 * step}, 'epoch': {step / 100}}}\n" for step in range(1, 9))
END = "{'train_runtime': 10.0, 'train_loss': 1.9, 'epoch': 1.0}\n"


def diagnosed(text: str | bytes):
    return diagnose_log(io.BytesIO(text.encode() if isinstance(text, str) else text))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_of_powershell_is_read(encoding):
    assert diagnosed(OOM.encode(encoding)).root.line == 3


@pytest.mark.parametrize("text", [OOM + TRAINED, OOM + END, "a question about 'Disk quota exceeded'\n" + TRAINED])
def test_what_training_went_on_after_did_not_end_it(text):
    found = diagnosed(text)
    assert (found.root, found.exit_code, len(found.survived)) == (None, 0, 1)
    assert "not the end, at line" in render(found)


def test_the_root_is_what_came_after_the_last_training():
    found = diagnosed(FULL + TRAINED + OOM)
    assert (found.root.name, [hit.name for hit in found.survived]) == ("gpu_out_of_memory", ["disk_full"])


def test_the_same_fault_again_is_the_root_where_it_came_again():
    assert diagnosed(OOM + TRAINED + OOM).root.line == 3 + 8 + 3


def test_another_ranks_fault_is_not_survived_by_what_rank_0_prints():
    assert diagnosed("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n" + TRAINED).root.rank == 1


@pytest.mark.parametrize(("key", "known"), [("prompt", False), ("text", False), ("message", True)])
def test_a_row_that_is_printed_speaks_of_no_fault_but_a_logger_does(key, known):
    line = json.dumps({key: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."})
    assert (diagnosed(line + "\n").root is not None) == known


@pytest.mark.parametrize("step", ["1e400", "nan", "9" * 400])
def test_a_step_that_no_run_has_is_counted_instead(step):
    line = f"{{'loss': 1.0, 'step': {step}, 'total_steps': {step}}}\n{{'loss': 1.0, 'step/max_steps': '{step}/{step}'}}"
    assert diagnosed(line).curves.summary.startswith("2 steps")


def test_a_bare_killed_is_told():
    assert diagnosed(TRAINED + "Killed\n").root.name == "killed_by_system"


SECRETS = {
    "HF_TOKEN=hf_aaaaaaaaBBBBBBBB": "hf_aaaa",
    "WANDB_API_KEY: 0123456789abcdef0123": "0123456",
    "'hub_token': 'opaque-value'": "opaque",
    "--hub_token=opaque-value": "opaque",
    "https://bob:pass@hub/x": "pass",
    "https://cdn/x?Signature=abc~def&Expires=1": "abc~def",
    "Authorization: Bearer abcdefgh": "abcdefgh",
    "github_pat_abcdefghijklmnopqrst123": "abcdefgh",
    "/home/alice/runs": "alice",
}


@pytest.mark.parametrize("shape", ["text", "--json", "a run"])
@pytest.mark.parametrize("words", SECRETS)
def test_no_secret_of_a_log_or_run_is_shown(words, shape, tmp_path, capsys):
    if shape == "a run":
        (tmp_path / "run.json").write_text("{}")
        (tmp_path / "events.jsonl").write_text("")
        (tmp_path / "status.json").write_text(json.dumps({"code": 1, "sentence": words, "time": 1.0}))
        main(["doctor", str(tmp_path)])
    else:
        (tmp_path / "log").write_text(f"{FRAME}odd.OddError: {words}\n")
        main(["doctor", str(tmp_path / "log"), *([shape] if shape == "--json" else [])])
    shown = capsys.readouterr().out
    assert SECRETS[words] not in shown
    assert "OddError" in shown or shape == "a run"


def test_words_about_tokens_stay():
    hide = Hider("/root", "root", "localhost")
    for words in ("set HF_TOKEN", "tokenizer.pad_token = tokenizer.eos_token", "`token=True`", "HF_TOKEN=None"):
        assert hide(words) == words


@pytest.mark.parametrize(
    "data",
    [
        {"sources": 7},
        {"sources": [{"source": "s", "read": 10**400, "dropped": {"a": 10**400}}]},
        {"leakage": {"exact": {"count": float("nan")}}},
        {"leakage": {"exact": float("inf")}, "general_share": {"asked": 10**400, "reached": 1}},
    ],
)
def test_a_damaged_account_of_data_is_no_crash(data, tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "events.jsonl").write_text(
        '{"kind": "overfit", "status": "failed", "step": 0, "time": 1, "causes": 7}\n'
    )
    (tmp_path / "data.json").write_text(json.dumps(data))
    assert main(["doctor", str(tmp_path)]) in (0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("history", [3, {"a": 1}, [{"step": 10**400, "loss": 1.0}], [{"step": 1, "loss": 10**400}]])
def test_a_damaged_trainer_state_is_no_crash(history, tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 10**400}))
    assert main(["doctor", str(tmp_path)]) == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    os.mkfifo(tmp_path / "events.jsonl")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "is a pipe or a device" in capsys.readouterr().err


def test_a_closed_standard_input_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["doctor", "-"]) == 2
    assert "it is closed here" in capsys.readouterr().err


def test_a_terminal_of_ascii_gets_ascii(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["doctor", "--quick"]) in (0, 1)
    sys.stdout.flush()
    assert b"-> " in raw.getvalue()


@pytest.mark.parametrize(("threads", "odd"), [("abc", True), ("0", True), ("-3", True), ("²", True), ("2,1", False)])
def test_threads_that_are_no_number_are_told(threads, odd):
    (found,) = on_cores(Facts(machine=Machine(cores=2), variables={"OMP_NUM_THREADS": threads}))
    assert ("is no number of threads" in found.sentence) == odd


def test_a_home_of_nobody_is_left_as_it_is():
    assert str(expanded("~nobody-of-that-name/x")) == "~nobody-of-that-name/x"
