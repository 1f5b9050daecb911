from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.batching.collate import (
    EpochSampler,
    SupervisedCollator,
    length_grouped_order,
    padding_share,
    shuffled_order,
)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=20), min_size=1, max_size=5), st.sampled_from([1, 8]))
def test_padding_is_on_the_right_and_to_the_multiple(rows, multiple):
    features = [{"input_ids": row, "labels": row, "source": "x", "row_id": "f:1"} for row in rows]
    batch = SupervisedCollator(7, multiple, return_attention_mask=True)(features)
    longest = max(map(len, rows))
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    assert all(tensor.dtype == torch.long and tensor.shape[0] == len(rows) for tensor in batch.values())
    length = batch["input_ids"].shape[1]
    assert length % multiple == 0 and longest <= length < longest + multiple
    for index, row in enumerate(rows):
        padding = length - len(row)
        assert batch["input_ids"][index].tolist() == row + [7] * padding
        assert batch["labels"][index].tolist() == row + [IGNORED_LABEL] * padding
        assert batch["attention_mask"][index].tolist() == [1] * len(row) + [0] * padding


def test_d12_pad_equals_eos_keeps_the_real_end(tokenizer):
    end = tokenizer.eos_token_id
    assert tokenizer.pad_token_id == end  # as in SmolLM2
    answers = [tokenizer(text)["input_ids"] + [end] for text in ("4", "a longer answer")]
    batch = SupervisedCollator(end)([{"input_ids": ids, "labels": ids} for ids in answers])
    assert (batch["labels"] == end).sum(dim=1).tolist() == [1, 1]
    for row, ids in zip(batch["labels"].tolist(), answers, strict=True):
        assert row == ids + [IGNORED_LABEL] * (len(row) - len(ids))
    assert batch["labels"].shape[1] > len(answers[0])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_without_a_mask_is_the_loss_with_one(tiny_model, attention):
    tiny_model.set_attn_implementation(attention)
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, tiny_model.config.vocab_size, (length,), generator=generator).tolist()
        for length in (5, 17, 30)
    ]
    features = [{"input_ids": row, "labels": [IGNORED_LABEL, *row[1:]]} for row in rows]
    losses = []
    for with_mask in (False, True):
        batch = SupervisedCollator(2, return_attention_mask=with_mask)(features)
        tiny_model.zero_grad()
        loss = tiny_model(**batch).loss
        loss.backward()
        gradient = torch.nn.utils.get_total_norm([p.grad for p in tiny_model.parameters() if p.grad is not None])
        losses.append((loss.item(), gradient.item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


PACKED = [
    {"input_ids": [3, 4, 5, 6, 7], "labels": [IGNORED_LABEL, 4, 5, IGNORED_LABEL, 7], "position_ids": [0, 1, 2, 0, 1]},
    {"input_ids": [8, 9, 3], "labels": [IGNORED_LABEL, 9, 3], "position_ids": np.array([0, 1, 2])},
]


def test_positions_count_on_in_the_padding_of_packed_rows():
    batch = SupervisedCollator(0)(PACKED)
    assert set(batch) == {"input_ids", "labels", "position_ids"}
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 7, 0, 0, 0], [8, 9, 3, 0, 0, 0, 0, 0]]
    assert batch["labels"][0].tolist() == [
        IGNORED_LABEL,
        4,
        5,
        IGNORED_LABEL,
        7,
        IGNORED_LABEL,
        IGNORED_LABEL,
        IGNORED_LABEL,
    ]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]]


def test_rows_of_one_sample_each_need_no_mask():
    from transformers.masking_utils import find_packed_sequence_indices

    assert find_packed_sequence_indices(SupervisedCollator(0)([PACKED[1]])["position_ids"]) is None


def test_packed_rows_can_be_joined_into_one():
    batch = SupervisedCollator(0, one_row=True)(PACKED)
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 7, 8, 9, 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert batch["labels"].tolist() == [[IGNORED_LABEL, 4, 5, IGNORED_LABEL, 7, IGNORED_LABEL, 9, 3]]


def test_samples_that_are_not_packed_are_never_joined():
    # The eval set is not packed, and meets the same collator.
    rows = [{"input_ids": [3, 4], "labels": [3, 4]}, {"input_ids": [5], "labels": [5]}]
    batch = SupervisedCollator(0, pad_to_multiple_of=1, one_row=True)(rows)
    assert batch["input_ids"].tolist() == [[3, 4], [5, 0]]


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(np.array)


@given(LENGTHS, st.integers(1, 12), st.integers(0, 3), st.integers(0, 3))
def test_the_grouped_order_has_every_sample_once_and_the_longest_in_front(lengths, batch_size, seed, epoch):
    order = length_grouped_order(lengths, batch_size, seed, epoch)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert order.tolist() == length_grouped_order(lengths, batch_size, seed, epoch).tolist()
    whole = len(order) // batch_size * batch_size
    for start in range(0, whole, batch_size):
        assert (np.diff(lengths[order[start : start + batch_size]]) <= 0).all()
    if whole:
        assert lengths[order[0]] == lengths[order[:whole]].max()


def chat_lengths(count):
    return np.clip(np.random.default_rng(0).lognormal(5, 0.8, count), 1, 2048).astype(np.int32)


def test_grouping_takes_most_padding_away_and_orders_every_epoch_anew():
    lengths = chat_lengths(5000)
    orders = [length_grouped_order(lengths, 16, 0, epoch) for epoch in (0, 1)]
    assert padding_share(lengths, 4) > 0.4
    assert all(padding_share(lengths[order], 4) < 0.06 for order in orders)
    batches = [{frozenset(batch) for batch in order[:4992].reshape(-1, 16).tolist()} for order in orders]
    assert not batches[0] & batches[1]
    # Batches come in random order, not from long to short: half of the steps, and about half of the tokens, are left.
    assert lengths[orders[0][:2500]].sum() == pytest.approx(lengths.sum() / 2, rel=0.1)


def test_padding_share_is_what_the_collator_pads():
    lengths = [3, 9, 8, 1, 17]
    features = [{"input_ids": [1] * length, "labels": [1] * length} for length in lengths]
    collator = SupervisedCollator(0)
    positions = sum(collator(features[start : start + 2])["input_ids"].numel() for start in (0, 2, 4))
    assert positions == 2 * 16 + 2 * 8 + 24
    assert padding_share(np.array(lengths), 2) == pytest.approx(1 - sum(lengths) / positions)


def batches_of_a_rank(order, samples, epoch, *, ranks, rank, micro_batch, skipped=0):
    """Sample numbers as accelerate hands them to a rank, and as it skips them on a resume."""
    from accelerate.data_loader import prepare_data_loader, skip_first_batches
    from torch.utils.data import DataLoader

    sampler = EpochSampler(order, samples, lambda: epoch)
    loader = DataLoader(range(samples), batch_size=micro_batch, sampler=sampler, collate_fn=list)
    loader = prepare_data_loader(loader, num_processes=ranks, process_index=rank, put_on_device=False)
    return list(skip_first_batches(loader, skipped) if skipped else loader)


@pytest.mark.parametrize(("ranks", "micro_batch", "accumulation"), [(1, 8, 1), (1, 2, 4), (2, 2, 2), (4, 1, 2)])
def test_a_step_has_the_same_samples_on_any_number_of_ranks(ranks, micro_batch, accumulation):
    lengths = chat_lengths(64)
    order = partial(length_grouped_order, lengths, 8, 0)
    for epoch in (0, 1):
        seen = [
            batches_of_a_rank(order, 64, epoch, ranks=ranks, rank=rank, micro_batch=micro_batch)
            for rank in range(ranks)
        ]
        for step, expected in enumerate(order(epoch).reshape(-1, 8).tolist()):
            mine = slice(step * accumulation, (step + 1) * accumulation)
            together = [sample for batches in seen for batch in batches[mine] for sample in batch]
            assert sorted(together) == sorted(expected)


def test_a_resume_in_a_later_epoch_takes_up_the_same_order_on_two_ranks():
    order = partial(length_grouped_order, chat_lengths(64), 8, 0)
    for rank in (0, 1):
        whole = batches_of_a_rank(order, 64, 3, ranks=2, rank=rank, micro_batch=4)
        rest = batches_of_a_rank(order, 64, 3, ranks=2, rank=rank, micro_batch=4, skipped=5)
        assert rest == whole[5:]


@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
def test_the_shuffled_order_changes_places_within_a_global_batch_only(lengths, batch_size, seed, epoch):
    lengths = np.array(lengths)
    order = shuffled_order(lengths, batch_size, seed, epoch)
    plain = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    for start in range(0, len(lengths), batch_size):
        ours, theirs = order[start : start + batch_size], plain[start : start + batch_size]
        assert sorted(ours) == sorted(theirs)
        assert (np.diff(lengths[ours]) <= 0).all()


def test_sorting_within_a_global_batch_of_many_micro_batches_takes_most_padding_away():
    lengths = np.random.default_rng(0).integers(20, 512, 2000)
    random = padding_share(lengths, 4)
    sorted_within = padding_share(lengths[shuffled_order(lengths, 64, 1, 0)], 4)
    assert random > 0.3 and sorted_within < 0.1
