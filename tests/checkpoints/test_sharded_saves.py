"""States that lie on several ranks in parts: all of their files are in the manifest, and damage to any is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from two_ranks import run_two_ranks

from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.checkpoints.verification.verify import verify_checkpoint

HERE = Path(__file__).resolve().parent

# What a strategy leaves on each rank, or from all of them, and how deeply it can be compared.
FILES = {
    "fsdp-full": (r"model\.safetensors|pytorch_model_fsdp\.bin|optimizer\.bin", 3, "content"),
    "fsdp-sharded": (r"(pytorch_model_fsdp_0|optimizer_0)/__[01]_0\.distcp", 4, "content"),
    "zero2": (r"global_step4/.*zero_pp_rank_[01]_mp_rank_00_optim_states\.pt", 2, "reload"),
    "zero3": (r"global_step4/.*zero_pp_rank_[01]_mp_rank_00_(optim|model)_states\.pt", 4, "content"),
    "zero3-lora": (r"global_step4/.*zero_pp_rank_[01]_mp_rank_00_(optim|model)_states\.pt", 4, "content"),
}


def check(output, seen, strategy):
    pattern, count, level = FILES[strategy]
    expected = {"failed": None, "step": 4, "ranks": 2}
    assert [rank[strategy] for rank in seen] == [expected, expected]
    checkpoint = output / strategy / "checkpoint-4"
    assert [path.name for path in (output / strategy).glob("checkpoint-*")] == ["checkpoint-4"]  # the trial is gone
    manifest, mark = read_manifest(checkpoint), read_verified(checkpoint)
    assert (mark["ok"], mark["level"]) == (True, level)
    parts = [name for name in manifest.files if re.fullmatch(pattern, name)]
    assert len(parts) == count, sorted(manifest.files)
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(manifest.files)
    for name in parts:
        flip_a_bit(checkpoint / name)
        report = verify_checkpoint(checkpoint)
        assert {problem.file for problem in report.problems} == {name}
        flip_a_bit(checkpoint / name)
    assert verify_checkpoint(checkpoint).ok


def flip_a_bit(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.slow
@pytest.mark.trials  # tests/strategies has a run that saves and resumes under FSDP2
def test_fsdp_full_and_sharded(tmp_path):
    strategies = ["fsdp-full", "fsdp-sharded"]
    seen = run_two_ranks(HERE / "sharded_saves.py", tmp_path, *strategies)
    for strategy in strategies:
        check(tmp_path, seen, strategy)


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("strategy", ["zero2", "zero3", "zero3-lora"])
def test_zero(strategy, tmp_path):
    pytest.importorskip("deepspeed")
    check(tmp_path, run_two_ranks(HERE / "sharded_saves.py", tmp_path, strategy), strategy)
