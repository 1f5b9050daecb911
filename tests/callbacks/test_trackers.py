"""Our metrics arrive in real trackers, under the names that docs/trackers.md promises. No network, nothing at home."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NAMES = ("tokens_per_second", "supervised_tokens_per_second", "step_seconds", "cpu_utilization", "memory_gb", "loss")

# In a process of its own: trackers read where to write when they are imported, and leave threads behind.
_SCRIPT = """
import json, socket, sys
from pathlib import Path

connect = socket.socket.connect
def local_only(self, address):
    assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
    return connect(self, address)
socket.socket.connect = local_only

from watch_helpers import make_trainer
from hf_recipes.callbacks.metrics_feed import feed_metrics
from hf_recipes.callbacks.throughput import ThroughputWatch

trainer = make_trainer(Path("run"), [ThroughputWatch()], report_to=[sys.argv[1]], run_name="tiny", project="ours")
feed_metrics(trainer)
trainer.train()
Path("history.json").write_text(json.dumps([log for log in trainer.state.log_history if "loss" in log]))
"""


def train(directory: Path, tracker: str) -> dict[str, dict[int, float]]:
    """Train four steps; each name's values by step, as the Trainer's own history has them."""
    home = directory / "home"
    home.mkdir()
    settings = {
        "HOME": home,
        "XDG_CACHE_HOME": home / "cache",
        "XDG_CONFIG_HOME": home / "config",
        "XDG_DATA_HOME": home / "data",
        "TENSORBOARD_LOGGING_DIR": directory / "tensorboard",
        "TRACKIO_DIR": directory / "trackio",
        "WANDB_DIR": directory,
        "WANDB_CACHE_DIR": home / "cache",
        "WANDB_CONFIG_DIR": home / "config",
        "WANDB_DATA_DIR": home / "data",
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": Path(__file__).parent,
    }
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TRACKIO_", "WANDB_"))}
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT, tracker],
        cwd=directory,
        env={**kept, **{key: str(value) for key, value in settings.items()}},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    logs = json.loads((directory / "history.json").read_text())
    assert len(logs) == 4
    return {name: {log["step"]: log[name] for log in logs} for name in NAMES}


@pytest.mark.trials
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = train(tmp_path, "tensorboard")
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    for name, values in expected.items():
        got = {point.step: point.value for point in read.Scalars(f"train/{name}")}
        assert got == pytest.approx(values, rel=1e-6)  # kept in single precision


@pytest.mark.trials
def test_trackio(tmp_path):
    pytest.importorskip("trackio")
    expected = train(tmp_path, "trackio")
    (database,) = (tmp_path / "trackio").glob("ours*.db")
    with sqlite3.connect(database) as connection:
        rows = [json.loads(row) for (row,) in connection.execute("SELECT metrics FROM metrics")]
    for name, values in expected.items():
        key = f"train/{name}"
        assert {row["train/global_step"]: row[key] for row in rows if key in row} == pytest.approx(values)


def offline_records(file: Path) -> list[bytes]:
    """The records of a W&B file: LevelDB's log format (7 bytes of file header; blocks of 32 KiB; each fragment with
    checksum, length and type, 1 a whole record, 2 the first part of one, 3 a middle one, 4 the last)."""
    data, place, records, parts = file.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:  # too little for a header: padding
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            records.append(parts)
            parts = b""
    return records


@pytest.mark.trials
def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    expected = train(tmp_path, "wandb")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for data in offline_records(file):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    for name, values in expected.items():
        key = f"train/{name}"
        assert {row["train/global_step"]: row[key] for row in rows if key in row} == pytest.approx(values)


def test_every_name_is_in_the_one_table_of_the_docs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    from hf_recipes.callbacks.throughput import ThroughputWatch

    documented = set(re.findall(r"`(\w+)`", (ThroughputWatch.__doc__ or "").split("Metrics")[1].split("Events")[0]))
    assert documented >= {*NAMES} - {"loss"}
    assert named >= documented | {*NAMES}
