"""Preparation that stops and goes on, in one process or several, whole or by shards: always the same data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from chat_families import family_tokenizer
from row_files import write_rows

from hf_recipes.core.errors import UserError
from hf_recipes.data import encode, workers
from hf_recipes.data.prepare import prepare_data, prepare_shard
from hf_recipes.data.reading.blocks import Limits


@pytest.fixture(scope="module")
def chatml():
    return family_tokenizer("chatml")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(workers, "LIMITS", Limits(rows=10))


@pytest.fixture
def file(tmp_path):
    rows = [{"instruction": f"question {number}", "output": f"answer {number * 7}"} for number in range(95)]
    return write_rows(tmp_path / "rows.jsonl", rows)


@pytest.fixture
def encoded(monkeypatch):
    """Counts the blocks that are encoded in this process."""
    counts = []
    real = encode.RowEncoder.encode
    monkeypatch.setattr(encode.RowEncoder, "encode", lambda plan, block: counts.append(1) or real(plan, block))
    return counts


def prepare(file, tokenizer, cache, **settings):
    return prepare_data([{"path": str(file)}], tokenizer, **{"max_length": 64, "cache_dir": cache, **settings})


def same(first, second):
    return first.train.to_list() == second.train.to_list() and first.eval.to_list() == second.eval.to_list()


def test_what_is_prepared_is_found_again(file, chatml, tmp_path, encoded):
    first = prepare(file, chatml, tmp_path / "cache")
    assert len(encoded) == 10
    assert same(first, prepare(file, chatml, tmp_path / "cache")) and len(encoded) == 10
    # Shares, split and order are chosen anew without encoding anything.
    other = prepare(file, chatml, tmp_path / "cache", seed=7, eval_share=0.3)
    assert len(encoded) == 10 and len(other.eval) == 28 != len(first.eval)


@pytest.mark.parametrize("change", [{"max_length": 63}, {"clean": {"html": True}}, {"mask_history": True}])
def test_d15_a_setting_of_the_samples_encodes_anew(file, chatml, tmp_path, encoded, change):
    prepare(file, chatml, tmp_path / "cache")
    prepare(file, chatml, tmp_path / "cache", **change)
    assert len(encoded) == 20


def test_d15_content_template_and_tokenizer_encode_anew(file, chatml, tmp_path, encoded):
    prepare(file, chatml, tmp_path / "cache")
    other = family_tokenizer("chatml")
    other.chat_template += "{# a comment #}"
    prepare(file, other, tmp_path / "cache")
    assert len(encoded) == 20
    file.write_text(file.read_text().replace("question 94", "question 95"))
    prepare(file, chatml, tmp_path / "cache")
    assert len(encoded) == 30


def test_a_preparation_that_stopped_goes_on(file, chatml, tmp_path, encoded, monkeypatch):
    whole = prepare(file, chatml, tmp_path / "whole")
    encoded.clear()
    counted = encode.RowEncoder.encode

    def stop_at_the_fourth(plan, block):
        if len(encoded) == 3:
            raise KeyboardInterrupt
        return counted(plan, block)

    monkeypatch.setattr(encode.RowEncoder, "encode", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        prepare(file, chatml, tmp_path / "cache")
    monkeypatch.setattr(encode.RowEncoder, "encode", counted)
    assert same(whole, prepare(file, chatml, tmp_path / "cache"))
    assert len(encoded) == 10  # three before the stop, seven after


def test_several_processes_give_the_same(file, chatml, tmp_path):
    alone = prepare(file, chatml, tmp_path / "alone", num_proc=1)
    together = prepare(file, chatml, tmp_path / "together", num_proc=3)
    assert same(alone, together)
    assert alone.report == together.report


def test_shards_in_any_order_give_the_same(file, chatml, tmp_path, encoded):
    alone = prepare(file, chatml, tmp_path / "alone")
    encoded.clear()
    for index in (2, 0, 1):
        prepare_shard([{"path": str(file)}], chatml, (index, 3), max_length=64, cache_dir=tmp_path / "shared")
    assert len(encoded) == 10
    assert same(alone, prepare(file, chatml, tmp_path / "shared")) and len(encoded) == 10


def test_a_shard_left_out_is_made_up_for(file, chatml, tmp_path, encoded):
    prepare_shard([{"path": str(file)}], chatml, (0, 2), max_length=64, cache_dir=tmp_path / "shared")
    assert len(encoded) == 5
    assert len(prepare(file, chatml, tmp_path / "shared", eval_share=0).train) == 95 and len(encoded) == 10


def test_a_faulty_row_in_a_worker_is_told_as_in_one_process(file, chatml, tmp_path):
    file.write_text(file.read_text() + '{"instruction": "a", "output": 3}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl, line 96: field 'output' is a number"):
        prepare(file, chatml, tmp_path / "cache", bad_rows="fail", num_proc=2)
    report = prepare(file, chatml, tmp_path / "cache", num_proc=2).report
    assert report["sources"][0]["dropped"]["field 'output' is a number, not text"]["examples"][0]["row"] == 96


def test_a_killed_preparation_leaves_only_whole_blocks(file, tmp_path, tokenizer):
    """SIGKILL in the middle; what is there is whole, and the same command ends it."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\nfrom transformers import AutoTokenizer\n"
        "from hf_recipes.data import workers, store\nfrom hf_recipes.data.reading.blocks import Limits\n"
        "from hf_recipes.data.prepare import prepare_data\n"
        "workers.LIMITS = Limits(rows=5)\nreal = store.BlockStore.write\n"
        "def slow(self, number, batches, account):\n    real(self, number, batches, account)\n"
        "    time.sleep(float(sys.argv[1]))\nstore.BlockStore.write = slow\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / 'tokenizer')!r})\n"
        f"sources, cache = [{{'path': {str(file)!r}}}], {str(tmp_path / 'c')!r}\n"
        "data = prepare_data(sources, tokenizer, max_length=64, cache_dir=cache)\n"
        "print(len(data.train), len(data.eval))\n"
    )
    running = subprocess.Popen([sys.executable, str(script), "0.3"], stdout=subprocess.PIPE, text=True)
    blocks = tmp_path / "c"
    while len(list(blocks.rglob("0*.json"))) < 3 and running.poll() is None:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    done = list(blocks.rglob("0*.json"))
    assert 3 <= len(done) < 19
    assert all(json.loads(account.read_text())["ledger"]["read"] == 5 for account in done)
    ended = subprocess.run([sys.executable, str(script), "0"], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["85", "10"]


@pytest.mark.parametrize("damage", ["cut samples", "other bytes", "empty account", "cut choice", "empty report"])
def test_what_is_damaged_in_the_cache_is_made_again(file, chatml, tmp_path, encoded, damage):
    first = prepare(file, chatml, tmp_path / "cache")
    before = first.train.to_list()  # read now: what is mapped from a file that is cut cannot be read any more
    pattern, keep = {
        "cut samples": ("000003.arrow", 100),
        "other bytes": ("000003.arrow", None),
        "empty account": ("000003.json", 0),
        "cut choice": ("samples.npz", 100),
        "empty report": ("report.json", 0),
    }[damage]
    (damaged,) = (tmp_path / "cache").rglob(pattern)
    data = damaged.read_bytes()
    damaged.write_bytes(
        data[: len(data) // 2] + b"damage" + data[len(data) // 2 + 6 :] if keep is None else data[:keep]
    )
    encoded.clear()
    assert prepare(file, chatml, tmp_path / "cache").train.to_list() == before
    assert len(encoded) == (1 if "000003" in pattern else 0)
