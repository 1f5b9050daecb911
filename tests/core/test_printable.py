"""Standard output whose reader leaves, or that lacks characters, changes neither what a verb does nor its exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_VERB = """
import sys
from hf_recipes.core.printable import outlive_reader
outlive_reader()
for _ in range(20_000):
    print("a line that nobody reads")
print("loss 1.78 → 0.06", flush=True)
import subprocess
child = subprocess.run([sys.executable, "-c", "print('more')"], stderr=subprocess.PIPE)
sys.exit(1 if child.returncode == 0 and not child.stderr else 3)
"""


def _start(unbuffered: bool, encoding: str = "utf-8") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    environment.pop("PYTHONUNBUFFERED", None)
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    return subprocess.Popen(
        [sys.executable, "-c", _VERB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_reader_that_leaves_changes_no_exit_code(unbuffered: bool) -> None:
    process = _start(unbuffered)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(), errors) == (1, b"")


def test_a_character_that_the_stream_lacks_stops_nothing() -> None:
    output, errors = _start(unbuffered=False, encoding="ascii").communicate()
    assert b"loss 1.78 ? 0.06\nmore\n" in output
    assert errors == b""


@pytest.mark.parametrize("verb", [["ls"], ["--help"], ["sft", "--help"]])
def test_the_command_ends_quietly_without_a_reader(verb: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "hf_recipes.cli.main", *verb], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
