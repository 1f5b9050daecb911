"""An optimizer state is taken up by the kind of strategy that wrote it, or refused before anything is loaded."""

from __future__ import annotations

import pytest

from hf_recipes.checkpoints.complete import optimizer_form
from hf_recipes.core.errors import UserError
from hf_recipes.plan.strategy.names import layout_of
from hf_recipes.training.resume import check_same_engine, form_read_by

# What each kind leaves, as `test_sharded_saves.py` finds it.
LEFT = {
    "plain": ["optimizer.pt"],
    "fsdp": ["optimizer.bin", "pytorch_model_fsdp.bin"],
    "fsdp sharded": ["optimizer_0/__0_0.distcp", "pytorch_model_fsdp_0/__0_0.distcp"],
    "pipeline": ["optimizer_0/__0_0.distcp"],
    "zero": [
        "latest",
        "global_step4/mp_rank_00_model_states.pt",
        "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
    "zero3": [
        "latest",
        "global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
}
READERS = {
    "plain": ["single", "ddp"],
    "fsdp": ["fsdp", "fsdp_offload", "hsdp"],
    "zero": ["zero1", "zero2", "zero2_offload"],
    "zero3": ["zero3", "zero3_offload", "zero3_offload_all"],
}


def left_by(kind, directory):
    for name in ["model.safetensors", "scheduler.pt", *LEFT[kind]]:
        file = directory / kind / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return directory / kind


@pytest.mark.parametrize("kind", LEFT)
def test_the_writer_is_known_by_its_files(kind, tmp_path):
    assert optimizer_form(left_by(kind, tmp_path)) == kind.split()[0]


@pytest.mark.parametrize("kind", READERS)
def test_only_the_same_kind_reads_it(kind, tmp_path):
    checkpoint = left_by(kind, tmp_path)
    for reader, strategies in READERS.items():
        for strategy in strategies:
            ranks, nodes = (4, 2) if strategy == "hsdp" else (1 if strategy == "single" else 2, 1)
            form = form_read_by(layout_of(strategy, ranks, nodes))
            if reader == kind:
                check_same_engine(checkpoint, form)
            else:
                with pytest.raises(UserError, match="was written under"):
                    check_same_engine(checkpoint, form)


def test_the_sentence_says_what_to_do(tmp_path):
    with pytest.raises(UserError) as told:
        check_same_engine(left_by("plain", tmp_path), "fsdp")
    assert str(told.value) == (
        f"'{tmp_path / 'plain'}' was written under one process or DDP, and FSDP cannot read that optimizer state: "
        "resume with strategy: ddp (or on one process), or start anew with another output_dir."
    )


def test_a_pipeline_reads_its_own_and_nobody_else_does(tmp_path):
    written = left_by("pipeline", tmp_path)
    check_same_engine(written, "pipeline")
    check_same_engine(None, "pipeline")
    for form in ("plain", "fsdp", "zero", "zero3"):
        with pytest.raises(UserError, match=r"written under a pipeline, .*: resume with strategy: pp, or start anew"):
            check_same_engine(written, form)
    with pytest.raises(UserError, match="a pipeline cannot read that optimizer state"):
        check_same_engine(left_by("plain", tmp_path), "pipeline")
