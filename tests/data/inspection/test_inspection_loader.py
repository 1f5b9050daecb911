from __future__ import annotations

import numpy as np
import pytest
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.batching.packing import pack, packed_dataset, sample_lengths
from hf_recipes.data.inspection.batches import view_batches
from hf_recipes.data.inspection.loader import LoaderSettings, TrainingRows, epoch_order, train_loader


def trainers_batches(dataset, tokenizer, tmp_path, seed, **settings):
    """What the run's own trainer takes in its first epoch."""
    from trl import SFTConfig

    from hf_recipes.training.trainer import SupervisedTrainer

    args = SFTConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=3,
        seed=seed,
        report_to="none",
        use_cpu=True,
        bf16=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        **settings,
    )
    trainer = SupervisedTrainer(
        model=make_tiny_llama(len(tokenizer)),
        args=args,
        data_collator=SupervisedCollator(pad_token_id=tokenizer.pad_token_id),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    return list(trainer.get_train_dataloader())


def shown_batches(rows, tokenizer, settings):
    collator = SupervisedCollator(pad_token_id=tokenizer.pad_token_id)
    return [batch for _, batch in train_loader(rows, epoch_order(rows, settings), collator, settings)]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        for name in one:
            assert one[name].tolist() == other[name].tolist()


@pytest.mark.parametrize(
    "recipe",
    [
        {"seed": 7},
        {"seed": 7, "data_seed": 11},
        {"seed": 7, "train_sampling_strategy": "sequential"},
        {"seed": 7, "dataloader_drop_last": True},
    ],
)
def test_batches_are_those_of_the_run(recipe, varied, tokenizer, tmp_path):
    settings = LoaderSettings.from_recipe({**recipe, "per_device_train_batch_size": 3})
    theirs = trainers_batches(varied.train, tokenizer, tmp_path, **recipe)
    assert_same(shown_batches(TrainingRows(varied.train), tokenizer, settings), theirs)


def test_packed_batches_are_those_of_the_run(varied, tokenizer, tmp_path):
    bins = pack(sample_lengths(varied.train), 64, seed=7)
    theirs = trainers_batches(packed_dataset(varied.train, bins), tokenizer, tmp_path, seed=7)
    settings = LoaderSettings(batch_size=3, seed=7)
    assert_same(shown_batches(TrainingRows(varied.train, bins), tokenizer, settings), theirs)


def test_seed_decides_the_order(varied):
    rows = TrainingRows(varied.train)
    orders = [epoch_order(rows, LoaderSettings(seed=seed)).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(40))


def test_length_groups_pad_less(varied):
    rows = TrainingRows(varied.train)
    lengths = rows.lengths()
    spreads = [
        np.ptp(lengths[epoch_order(rows, LoaderSettings(batch_size=4, sampling=sampling))].reshape(-1, 4), axis=1).sum()
        for sampling in ("random", "group_by_length")
    ]
    assert spreads[1] < spreads[0]


def test_unknown_sampling_is_refused():
    with pytest.raises(UserError, match="batch_rebalance"):
        LoaderSettings.from_recipe({"train_sampling_strategy": "batch_rebalance"})


def test_steps_and_ranks():
    settings = LoaderSettings(accumulation=2, ranks=3)
    # Batches are dealt to ranks 0, 1, 2 in turn; a step takes two from each.
    assert [settings.step_and_rank(n) for n in (0, 1, 2, 3, 5, 6)] == [(1, 0), (1, 1), (1, 2), (1, 0), (1, 2), (2, 0)]


def view(varied, tokenizer, bins=None, count=99):
    settings = LoaderSettings(batch_size=3, sampling="sequential")
    rows = TrainingRows(varied.train, bins)
    loader = train_loader(rows, epoch_order(rows, settings), SupervisedCollator(tokenizer.pad_token_id), settings)
    return list(view_batches(loader, rows, tokenizer, count, settings))


def test_views_count_what_the_batch_holds(varied, tokenizer):
    batches = view(varied, tokenizer)
    assert len(batches) == 14  # 40 samples by threes
    samples = [sample for batch in batches for sample in batch.samples]
    assert [sample.row_id for sample in samples] == varied.train["row_id"]
    assert [sample.tokens for sample in samples] == [len(ids) for ids in varied.train["input_ids"]]
    for batch in batches:
        assert all(sample.tokens + sample.padding == batch.length for sample in batch.samples)
        assert batch.padding_share == 1 - batch.tokens / (batch.rows * batch.length)
        assert batch.learned == sum(sample.learned for sample in batch.samples)


def test_d12_padding_is_not_told_by_token(varied, tokenizer):
    """Here pad is the end-of-turn token: it is shown where it ends an answer, and not where it pads."""
    assert tokenizer.pad_token == tokenizer.eos_token == "<|im_end|>"
    for batch in view(varied, tokenizer):
        for sample in batch.samples:
            assert "".join(part.text for part in sample.segments).count("<|im_end|>") == 2
            assert sample.segments[-1].learned and sample.segments[-1].text.endswith("<|im_end|>")


def test_packed_samples_are_shown_one_by_one(varied, tokenizer):
    bins = pack(sample_lengths(varied.train), 64, seed=7)
    samples = [sample for batch in view(varied, tokenizer, bins) for sample in batch.samples]
    assert sorted(sample.row_id for sample in samples) == sorted(varied.train["row_id"])
    texts = dict(zip(varied.train["row_id"], varied.train["input_ids"], strict=True))
    for sample in samples:
        assert "".join(part.text for part in sample.segments) == tokenizer.decode(texts[sample.row_id])


def test_fewer_batches_than_asked_is_no_error(varied, tokenizer):
    assert len(view(varied, tokenizer, count=1000)) == 14
    assert view(varied, tokenizer, count=0) == []
