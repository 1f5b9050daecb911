from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from report_runs import event, training, write_events

from hf_recipes.cli.main import main


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verb_writes_both_and_prints_their_paths(tmp_path, capsys, as_json):
    write_events(tmp_path, training(10))
    assert main(["report", str(tmp_path), *(["--json"] if as_json else [])]) == 0
    out = capsys.readouterr().out
    paths = list(json.loads(out).values()) if as_json else out.split()
    assert paths == [str(tmp_path / "report.html"), str(tmp_path / "curves.png")]
    assert all(Path(path).stat().st_size for path in paths)


def test_several_runs_go_into_one_page_where_it_was_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_events(tmp_path / name, training(10))
    assert main(["report", "a", "b"]) == 0
    assert capsys.readouterr().out == "comparison.html\n"
    assert main(["report", "a", "b", "--output", "over/there.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"comparison": "over/there.html"}
    for page in ("comparison.html", "over/there.html"):
        assert "2 runs" in Path(page).read_text("utf-8")
    assert not list(tmp_path.glob("a/report.html"))


@pytest.mark.parametrize("mode", [[], ["--text"], ["--output", "c.html"]])
def test_damaged_files_are_told_on_the_terminal_in_every_mode(mode, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path / "run", training(10))
    Path("run/data.json").write_text("{half")
    with open("run/events.jsonl", "a") as file:
        file.write("torn\n")
    assert main(["report", "run", *mode]) == 0
    told = capsys.readouterr().err
    assert "warning: run: data.json cannot be read" in told
    assert "events.jsonl: 1 line holds no event" in told


def test_text_writes_no_file(tmp_path, capsys):
    write_events(tmp_path, training(10))
    before = set(tmp_path.iterdir())
    assert main(["report", str(tmp_path), "--text"]) == 0
    assert "loss, train" in capsys.readouterr().out
    assert set(tmp_path.iterdir()) == before


def test_the_directory_of_anybodys_trainer_is_enough(tmp_path, capsys):
    write_events(tmp_path, training(10))
    (tmp_path / "run.json").unlink()
    assert main(["report", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--text", "--serve"], "give one of"),
        (["--text", "--json"], "give one of them"),
        (["--serve", "70000"], "a port is a number from 0 to 65535"),
        (["--output", "."], "is a directory"),
        (["nowhere"], "'nowhere' does not exist"),
        (["--serve", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_wrong_use_is_one_sentence(argv, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path, [event("begin", 0)])
    assert main(["report", *argv]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_a_port_in_use_is_one_sentence(tmp_path, capsys):
    write_events(tmp_path, [event("begin", 0)])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["report", str(tmp_path), "--serve", str(port)]) == 2
    assert f"port {port} is in use" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_serving_with_0(tmp_path):
    write_events(tmp_path, training(5))
    code = "import sys; from hf_recipes.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(tmp_path), "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        told = server.stdout.readline()
        assert re.search(r"at http://127\.0\.0\.1:\d+/ \(Ctrl-C ends\)", told)
        time.sleep(0.2)
        os.kill(server.pid, signal.SIGINT)
        try:
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()
        assert server.stderr.read() == ""
