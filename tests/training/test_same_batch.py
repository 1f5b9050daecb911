from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.checkpoints.manifest import Manifest
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.same_batch import Batch, WrittenBatch, fit_batch, keep_global_batch, written_batch

sizes = st.integers(1, 64)


def write(run, *, ranks, rows=None, record=None):
    """A checkpoint that says how it was written: in its manifest, or as older ones in the run.json beside it."""
    checkpoint = run / "checkpoint-6"
    checkpoint.mkdir(parents=True)
    extra = {} if rows is None else {"batch": {"global_batch_size": rows, "world_size": ranks}}
    (checkpoint / "manifest.json").write_text(json.dumps(Manifest({}, 6, ranks, extra).to_dict()))
    if record:
        (run / "run.json").write_text(json.dumps({"recipe": {}, **record}))
    return checkpoint


def arguments(micro, accumulation, ranks, **more):
    values = {"train_sampling_strategy": "random", "ignore_data_skip": False, **more}
    return SimpleNamespace(
        per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation, world_size=ranks, **values
    )


def keep(checkpoint, now, **recipe):
    keep_global_batch(Recipe("test", recipe, frozenset()), now, checkpoint)
    return now.per_device_train_batch_size, now.gradient_accumulation_steps


@given(sizes, sizes, sizes, sizes, st.booleans())
def test_a_fitted_batch_has_the_rows_asked_for_and_the_ranks_there_are(rows, micro, accumulation, ranks, open_micro):
    fitted = fit_batch(rows, Batch(micro, accumulation, ranks), open_micro=open_micro)
    if fitted is None:
        assert rows % ranks or (rows // ranks % micro and not open_micro)
        return
    assert (fitted.rows, fitted.ranks) == (rows, ranks)
    assert fitted.micro == micro or (open_micro and fitted.micro < micro)


def test_the_batch_is_read_from_the_manifest_and_of_older_ones_from_the_run(tmp_path):
    assert written_batch(write(tmp_path / "new", ranks=2, rows=16)) == WrittenBatch(16, 2)
    record = {"global_batch_size": 8, "world_size": 2}
    assert written_batch(write(tmp_path / "old", ranks=2, record=record)) == WrittenBatch(8, 2)
    # run.json is of the last attempt, the checkpoint of one before
    assert written_batch(write(tmp_path / "between", ranks=4, record=record)) is None
    (tmp_path / "foreign" / "checkpoint-6").mkdir(parents=True)
    assert written_batch(tmp_path / "foreign" / "checkpoint-6") is None


@pytest.mark.parametrize(
    ("ranks_before", "now", "kept"),
    [(2, (2, 1, 1), (2, 8)), (1, (2, 8, 4), (2, 2)), (4, (4, 1, 2), (4, 2)), (4, (4, 2, 2), (4, 2))],
)
def test_c6_another_number_of_ranks_keeps_the_global_batch(ranks_before, now, kept, tmp_path):
    assert keep(write(tmp_path, ranks=ranks_before, rows=16), arguments(*now)) == kept


def test_c6_what_was_changed_is_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        keep(write(tmp_path, ranks=2, rows=16), arguments(4, 2, 1))
    (sentence,) = [record.message for record in caplog.records]
    assert "The global batch stays at the 16 rows that '" in sentence
    assert "was written with by 2 processes: " in sentence
    assert (
        "4 a device × 4 accumulated × 1 (the recipe's own numbers, 4 a device × 2 accumulated × 1, make 8)" in sentence
    )


def test_c6_ranks_that_cannot_make_the_batch_are_refused_with_those_that_can(tmp_path):
    checkpoint = write(tmp_path, ranks=3, rows=12)
    with pytest.raises(UserError, match=r"set per_device_train_batch_size to 1, 2, 3 or 6, or start with 1 or 3 pro"):
        keep(checkpoint, arguments(4, 1, 2))
    with pytest.raises(UserError, match=r"cannot make: start with 1, 2, 3 or 6 processes"):
        keep(checkpoint, arguments(2, 1, 5))
    with pytest.raises(UserError, match=r"start with 3 processes and the micro-batch it had"):
        keep(checkpoint, arguments(5, 1, 5))
    assert keep(checkpoint, arguments(4, 1, 2), auto_micro_batch=True) == (3, 2)


@pytest.mark.parametrize(
    ("rows", "order", "sentence"),
    [
        (8, "random", "rows of this epoch that lie between are left out"),
        (32, "random", "rows already met in this epoch are met again"),
        (8, "group_by_length", "rows are grouped into other batches"),
    ],
)
def test_another_batch_on_the_same_ranks_is_warned_of_once(rows, order, sentence, tmp_path, caplog):
    now = arguments(8, 1, 2, train_sampling_strategy=order)
    with caplog.at_level(logging.WARNING, "hf_recipes"):
        assert keep(write(tmp_path, ranks=2, rows=rows), now) == (8, 1)
    (message,) = [record.message for record in caplog.records]
    assert f"was written with {rows} rows a step, this run takes 16" in message
    assert sentence in message


@pytest.mark.parametrize(("before", "kept"), [(4, (4, 4)), (2, (4, 1))])
def test_c6_a_batch_that_was_kept_once_is_kept_again(before, kept, tmp_path):
    """The recipe's numbers make another batch on these ranks, and so they did when this checkpoint was written: they
    count only if they were changed."""
    record = {"recipe": {"per_device_train_batch_size": before}}
    checkpoint = write(tmp_path, ranks=1, rows=16, record=record)
    assert keep(checkpoint, arguments(4, 1, 1), per_device_train_batch_size=4) == kept


def test_the_same_batch_in_other_parts_is_silent(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "hf_recipes"):
        assert keep(write(tmp_path, ranks=2, rows=16), arguments(2, 4, 2)) == (2, 4)
        assert keep(None, arguments(2, 4, 2)) == (2, 4)
    assert not caplog.records


def test_skipping_the_place_in_the_data_is_warned_of(tmp_path, caplog):
    keep(write(tmp_path, ranks=2, rows=16), arguments(2, 4, 2, ignore_data_skip=True))
    assert "the epoch begins anew" in caplog.text
