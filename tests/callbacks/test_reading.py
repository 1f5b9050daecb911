"""What the ranks told, put together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_helpers import NAN_LOSS_ONLY, Readings, logged, make_trainer, rows

from hf_recipes.callbacks.reading import (
    GRADIENT,
    LOSS,
    NO_NORM,
    NONE_BAD,
    BadMicroBatch,
    Told,
    code_of,
    from_told,
)


def told(**values):
    quiet = {
        "first_bad": NONE_BAD,
        "norm": 1.0,
        "weighted_loss": 0.0,
        "mean_loss": 0.0,
        "weighted_calls": 0,
        "mean_calls": 0,
        "step": 1,
        "rows": 2,
        "positions": 16,
        "supervised_tokens": 9,
        "micro_batches": 2,
    }
    return Told(**{**quiet, **values})


def read(*each, items_of_all_ranks=True, last_bad=2):
    return from_told(each, 1, items_of_all_ranks=items_of_all_ranks, last_bad=last_bad)


@given(
    micro_batch=st.integers(0, 500), ranks=st.integers(1, 64), data=st.data(), what=st.sampled_from([LOSS, GRADIENT])
)
def test_the_first_bad_micro_batch_is_found_on_whatever_rank(micro_batch, ranks, data, what):
    rank = data.draw(st.integers(0, ranks - 1))
    shares = [told() for _ in range(ranks)]
    shares[rank] = told(first_bad=code_of(micro_batch, rank, ranks, what))
    assert read(*shares).bad == BadMicroBatch("gradient" if what else "loss", micro_batch + 1, rank)


def test_an_earlier_micro_batch_comes_first_and_at_equal_ones_the_lower_rank():
    assert code_of(0, 1, 2, GRADIENT) < code_of(1, 0, 2, LOSS)
    assert code_of(1, 0, 2, GRADIENT) < code_of(1, 1, 2, LOSS)


def test_a_gradient_that_was_averaged_over_the_ranks_is_of_none_of_them():
    """Each rank finds it, under the code of the last one; a bad loss of that micro-batch still names its rank."""
    averaged = told(first_bad=code_of(1, 2, 3, GRADIENT))
    assert read_averaged(averaged, averaged, averaged) == BadMicroBatch("gradient", 2, None)
    for rank in range(3):
        loss = told(first_bad=code_of(1, rank, 3, LOSS))
        assert read_averaged(averaged, loss, averaged) == BadMicroBatch("loss", 2, rank)
    earlier = told(first_bad=code_of(0, 1, 3, LOSS))
    assert read_averaged(averaged, earlier, averaged) == BadMicroBatch("loss", 1, 1)
    alone = told(first_bad=code_of(0, 0, 1, GRADIENT))
    assert read_averaged(alone) == BadMicroBatch("gradient", 1, 0)


def read_averaged(*each):
    return from_told(each, 1, items_of_all_ranks=True, last_bad=2, averaged=True).bad


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_on_one_rank_is_so_for_all(norm):
    reading = read(told(), told(norm=norm))
    assert math.isnan(reading.norm)
    assert reading.bad == BadMicroBatch("gradient", 2, None)
    assert reading.by_rank[0].norm == 1.0


def test_no_norm_is_none_and_not_bad():
    reading = read(told(norm=NO_NORM))
    assert (reading.norm, reading.bad, reading.by_rank[0].norm) == (None, None, None)


def test_weighted_losses_add_up_over_ranks_and_means_are_averaged():
    # Items of all ranks: 2 + 1. Items of each rank: (2 + 1) / 2. Means: (3/2 + 4/2) / 2.
    weighted = told(weighted_loss=2.0, weighted_calls=2), told(weighted_loss=1.0, weighted_calls=2)
    assert read(*weighted).loss == 3.0
    assert read(*weighted, items_of_all_ranks=False).loss == 1.5
    assert read(told(mean_loss=3.0, mean_calls=2), told(mean_loss=4.0, mean_calls=2)).loss == 1.75


def test_a_loss_not_seen_is_none_and_a_bad_one_nan():
    assert read(told()).loss is None
    assert math.isnan(read(told(mean_loss=math.inf, mean_calls=1)).loss)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_read_loss_is_the_trainers(accumulation, tmp_path):
    readings = Readings()
    trainer = make_trainer(tmp_path, [readings], gradient_accumulation_steps=accumulation)
    trainer.train()
    assert [reading.loss for reading in readings.seen] == pytest.approx(logged(trainer, "loss"), abs=1e-4)
    (share,) = readings.seen[-1].by_rank
    assert (share.step, share.micro_batches, share.rows) == (4, accumulation, accumulation)
    assert (share.positions, share.supervised_tokens) == (6 * accumulation, 6 * accumulation)


def test_the_read_loss_is_not_filtered(tmp_path):
    readings = Readings()
    make_trainer(tmp_path, [readings], rows(8, {1: NAN_LOSS_ONLY})).train()
    assert [math.isnan(reading.loss) for reading in readings.seen] == [False, True, False, False]


def test_micro_batches_are_kept_for_one_step(tmp_path):
    readings, data = Readings(), rows(8)
    make_trainer(tmp_path, [readings], data, gradient_accumulation_steps=2).train()
    assert [ids for step in readings.micro_batches for ids in step] == [row["input_ids"].tolist() for row in data]
    assert readings._gate.micro_batches == []


def test_the_loss_of_our_trainer_is_seen(tmp_path, tiny_model, tokenizer):
    """It is computed outside the model, with the labels held back from it."""
    from tiny_runs import tiny_arguments, tiny_rows

    from hf_recipes.data.batching.collate import SupervisedCollator
    from hf_recipes.training.trainer import SupervisedTrainer

    readings, dataset = Readings(), tiny_rows(100)
    trainer = SupervisedTrainer(
        model=tiny_model,
        args=tiny_arguments(tmp_path, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[readings],
    )
    trainer.train()
    assert [reading.loss for reading in readings.seen] == pytest.approx(logged(trainer, "loss"), abs=1e-4)
    supervised = sum(label != -100 for labels in dataset["labels"] for label in labels)
    assert sum(reading.by_rank[0].supervised_tokens for reading in readings.seen) == supervised
