"""What is counted in batches, against the rows they were made from."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.flops import Work
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.profiling.batches import CountingCollator, take_facts, total_work

samples = st.lists(st.integers(1, 30), min_size=1, max_size=6)


def row(length, pad=0):
    """`length` tokens, all of them the pad token: they must count all the same. The last half is learned."""
    return {"input_ids": [pad] * length, "labels": [-100] * (length // 2) + [pad] * (length - length // 2)}


@given(samples)
def test_padding_is_counted_by_position_even_where_tokens_equal_it(lengths):
    plain = SupervisedCollator(pad_token_id=0)
    batch = CountingCollator(plain)([row(length) for length in lengths])
    facts = take_facts(batch)
    assert batch.keys() == {"input_ids", "labels"}  # what the trainer is given is what it would have been given
    for name, values in plain([row(length) for length in lengths]).items():
        assert torch.equal(batch[name], values)
    assert (facts.rows, facts.positions) == (len(lengths), len(lengths) * -(-max(lengths) // 8) * 8)
    # The first token is no target, so a row of one learns nothing.
    learned = sum(length - max(1, length // 2) for length in lengths)
    assert facts.work() == Work(sum(lengths), learned, sum(n * (n + 1) // 2 for n in lengths))
    assert not facts.masked


@given(st.lists(samples, min_size=1, max_size=3), st.booleans())
def test_packed_samples_see_only_themselves(rows, one_row):
    features = [
        {
            "input_ids": [5] * sum(lengths),
            "labels": [5] * sum(lengths),
            "position_ids": [position for length in lengths for position in range(length)],
        }
        for lengths in rows
    ]
    batch = CountingCollator(SupervisedCollator(pad_token_id=0, one_row=one_row))(features)
    facts = take_facts(batch)
    flat = [length for lengths in rows for length in lengths]
    assert facts.rows == (1 if one_row else len(rows))
    assert facts.work().tokens == sum(flat)
    assert facts.work().pairs == sum(n * (n + 1) // 2 for n in flat)


def test_a_mask_is_noticed_and_batches_add_up():
    collate = CountingCollator(SupervisedCollator(pad_token_id=0, return_attention_mask=True))
    facts = [take_facts(collate([row(4), row(2)])) for _ in range(2)]
    assert facts[0].masked
    assert total_work(facts) == Work(12, 2 * (2 + 1), 2 * (10 + 3))
