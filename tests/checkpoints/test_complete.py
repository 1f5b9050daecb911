"""What must be there to resume, for every kind of saver: the files of FSDP and DeepSpeed without a manifest."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch.distributed import checkpoint as distributed_checkpoint

from hf_recipes.checkpoints.complete import is_zero_sharded, missing_for_resume, ranks_of

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def bare(tmp_path):
    """A checkpoint of two ranks with everything but weights and optimizer."""
    directory = tmp_path / "checkpoint-2"
    directory.mkdir()
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": 2}))
    for name in ("scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        torch.save({}, directory / name)
    return directory


@pytest.fixture
def fsdp(bare):
    """With FSDP's sharded states, written by torch itself."""
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        distributed_checkpoint.save({"weight": torch.ones(3)}, checkpoint_id=bare / name, no_dist=True)
    return bare


@pytest.fixture
def zero(bare):
    """With the names of DeepSpeed's ZeRO-3 in bf16, on two ranks."""
    (bare / "latest").write_text("global_step2")
    (bare / "global_step2").mkdir()
    for rank in (0, 1):
        for part in (f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim", f"zero_pp_rank_{rank}_mp_rank_00_model"):
            (bare / "global_step2" / f"{part}_states.pt").touch()
    return bare


def test_checkpoints_of_fsdp_and_deepspeed_are_complete(fsdp):
    assert missing_for_resume(fsdp) == []
    assert not is_zero_sharded(fsdp)


def test_zero_is_complete_and_known_as_sharded(zero):
    assert missing_for_resume(zero) == []
    assert is_zero_sharded(zero)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("optimizer_0", "optimizer.pt"),
        ("pytorch_model_fsdp_0", "weights"),
        ("optimizer_0/.metadata", "optimizer_0/.metadata"),
        ("pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/__0_0.distcp"),
        ("scheduler.pt", "scheduler.pt"),
        ("rng_state_1.pth", "rng_state_1.pth"),
    ],
)
def test_c4_what_fsdp_needs_is_missed(gone, named, fsdp):
    path = fsdp / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert missing_for_resume(fsdp) == [named]


def test_a_cut_metadata_is_missed(fsdp):
    metadata = fsdp / "optimizer_0" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    assert missing_for_resume(fsdp) == ["optimizer_0/.metadata"]


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("latest", "latest"),
        ("global_step2", "the folder that its file 'latest' names (global_step2)"),
        ("global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", None),
        ("global_step2/zero_pp_rank_1_mp_rank_00_model_states.pt", None),
    ],
)
def test_c4_what_deepspeed_needs_is_missed(gone, named, zero):
    path = zero / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert missing_for_resume(zero) == [named or gone]


def test_a_rank_that_wrote_only_its_random_state_is_missed(zero):
    """Its part of the optimizer, and of the model, cannot be had from the others."""
    torch.save({}, zero / "rng_state_2.pth")
    assert ranks_of(zero) == 3
    assert missing_for_resume(zero) == [
        "global_step2/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
        "global_step2/zero_pp_rank_2_mp_rank_00_model_states.pt",
    ]


def test_a_latest_that_leads_elsewhere_is_not_followed(zero, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (zero / "latest").write_text("../elsewhere")
    assert missing_for_resume(zero) == ["the folder that its file 'latest' names (../elsewhere)"]
