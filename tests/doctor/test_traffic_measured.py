"""What `doctor --network` reckons that a strategy sends, against what its collectives were given."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from two_ranks import run_two_ranks

from hf_recipes.doctor.network.traffic import WEIGHED

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "strategies"), str(ROOT / "tests" / "training")]

from communication_rows.cells import DATA_PARALLEL, Cell, count, prepare  # noqa: E402
from communication_rows.theory import reckoned_bytes, ring_bytes, sent  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "2026-11-30-communication.json"
# FSDP2 keeps the weights of the head gathered between forward and backward, and ZeRO-3 those it has just used: less
# than one gather of four layers and a head. What embedding and head add under tp is more beside four layers.
CLOSE = {"tp": 0.1, "zero3": 0.08}  # ZeRO-3 gathers most of a checkpointed layer again, not all
# Runs that ask DeepSpeed for something else than this package writes, and one of a model too small to be sharded.
OTHERWISE = {"use_multi_rank_bucket_allreduce", "as_planned"}


@pytest.mark.parametrize(
    ("collective", "ranks", "share"),
    # Of a tensor of 1: a ring of 4 passes three quarters on to reduce, and as much again to gather.
    [("all_reduce", 4, 1.5), ("reduce_scatter", 4, 0.75), ("all_gather", 2, 0.5), ("all_reduce", 2, 1), ("send", 2, 1)],
)
def test_what_a_ring_sends(collective, ranks, share):
    assert ring_bytes(collective, 1.0, ranks) == pytest.approx(share)


def test_talk_is_counted_apart():
    found = sent([["all_reduce", 8000, 2000, "float32", 2, 3], ["all_gather", 16, 2, "int64", 2, 5]])
    assert (found.bytes, found.messages, found.talk_bytes, found.talk_messages) == (24000, 3, 40, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from communication_rows.recorder import make_model

    folder = tmp_path_factory.mktemp("shapes")
    make_model(str(folder), {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4})
    return folder / "untied"


def check(found, model):
    cell = Cell(**found["cell"])
    close = CLOSE.get(cell.strategy, 0.05)
    for rank in found["messages"]:
        assert sent(rank).bytes == pytest.approx(reckoned_bytes(cell, model, found["batch"][1]), rel=close), cell.name


def test_the_doctor_reckons_what_was_counted(model):
    """All runs that are kept with the benchmarks, whose DeepSpeed is configured as this package writes it."""
    kept = [found for found in json.loads(KEPT.read_text())["counts"].values() if told(Cell(**found["cell"]))]
    assert {found["cell"]["strategy"] for found in kept} >= set(DATA_PARALLEL)
    for found in kept:
        check(found, model)


def told(cell):
    return cell.strategy in WEIGHED and not cell.sizes and not set(cell.zero) & OTHERWISE


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    from launched_ranks import LaunchedRanks

    folder = tmp_path_factory.mktemp("counted")
    ranks = LaunchedRanks(folder)
    prepare(folder, ranks)
    yield folder, ranks
    ranks.close()


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("strategy", DATA_PARALLEL)
def test_the_doctor_reckons_what_is_sent(strategy, method, place):
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed")
    folder, ranks = place
    check(count(Cell(strategy, method=method, passes=2), folder, ranks), folder / "untied")


@pytest.mark.slow
@pytest.mark.trials
def test_no_collective_is_missed(tmp_path):
    """DDP reduces in C++, FSDP2 beside the autograd engine: as many are written down as torch's flight recorder has."""
    for seen in run_two_ranks(Path(__file__).with_name("counted_ranks.py"), tmp_path):
        for each in seen.values():
            kinds = Counter(message["collective"] for message in each["recorded"])
            kinds["all_reduce"] += kinds.pop("reduce_scatter", 0)  # which is what gloo makes of it
            assert kinds == each["flown"]
            assert sum(kinds.values()) > 1
