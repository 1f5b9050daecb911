from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.evaluation import likelihood
from hf_recipes.evaluation.general import mean_loss
from hf_recipes.evaluation.likelihood import budget_batches, continuation, row_nats


def make_rows(lengths: list[int], supervised_from: list[int], seed: int = 0) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length, start in zip(lengths, supervised_from, strict=True):
        ids = torch.randint(0, 400, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORED_LABEL] * start + ids[start:]})
    return rows


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 100))
def test_batches_hold_every_row_once_within_the_budget(lengths, budget):
    batches = budget_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= budget


def test_the_mean_is_over_tokens_and_padding_does_not_show(tiny_model):
    rows = make_rows([5, 23, 11, 40], [2, 20, 0, 10])
    losses = []  # each row alone, without padding, by the model's own log-softmax
    for row in rows:
        with torch.inference_mode():
            logs = tiny_model.eval()(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        losses += [-logs[i - 1, label].item() for i, label in enumerate(row["labels"]) if i and label != IGNORED_LABEL]
    # supervised: 3 + 3 + 10 (the first of 11 is not predicted) + 30
    loss = mean_loss(tiny_model, rows)
    assert (loss.tokens, loss.rows) == (46, 4) == (len(losses), len(rows))
    assert loss.nats_per_token == pytest.approx(math.fsum(losses) / 46, abs=1e-5)


@pytest.mark.parametrize("token_budget", [1, 50, 10**6])
def test_batching_does_not_change_the_mean(tiny_model, monkeypatch, token_budget):
    rows = make_rows([7, 30, 12, 9, 30], [3, 3, 3, 3, 3])
    expected = mean_loss(tiny_model, rows).nats_per_token
    monkeypatch.setattr(likelihood, "_LOGITS_BYTES", token_budget * 8 * tiny_model.config.vocab_size)
    assert mean_loss(tiny_model, rows).nats_per_token == pytest.approx(expected, abs=1e-5)


def test_t11_logits_of_one_batch_at_a_time_are_held(tiny_model, monkeypatch):
    """The logits alive at any time stay within the budget, however many rows there are."""
    import weakref

    monkeypatch.setattr(likelihood, "_LOGITS_BYTES", 40 * 8 * tiny_model.config.vocab_size)
    seen: list[weakref.ref] = []
    alive: list[int] = []

    def watch(module, inputs, output):
        alive.append(sum(ref() is not None for ref in seen))
        assert output.shape[0] * output.shape[1] <= 40
        seen.append(weakref.ref(output))

    handle = tiny_model.lm_head.register_forward_hook(watch)
    mean_loss(tiny_model, make_rows([20] * 12, [2] * 12))
    handle.remove()
    assert len(seen) == 6
    assert max(alive) <= 1  # the last batch's, until its name is bound anew
    assert all(ref() is None for ref in seen)


def test_rows_without_a_predicted_token_weigh_nothing(tiny_model):
    rows = make_rows([6, 9], [0, 9])
    only_first = mean_loss(tiny_model, rows[:1])
    both = mean_loss(tiny_model, rows)
    assert both == only_first
    assert mean_loss(tiny_model, [{"input_ids": [4], "labels": [4]}]) is None
    assert mean_loss(tiny_model, []) is None


def test_training_mode_is_put_back(tiny_model):
    tiny_model.train()
    mean_loss(tiny_model, make_rows([6], [1]))
    assert tiny_model.training


def test_an_answer_is_as_likely_in_a_batch_as_alone(tiny_model):
    rows = [continuation([5, 9, 11, 3], [7]), continuation([5], [4, 8, 2, 6, 1]), continuation(list(range(30)), [3, 3])]
    with torch.inference_mode():
        logs = tiny_model.eval()(torch.tensor([[5, 9, 11, 3, 7]])).logits[0].log_softmax(-1)
    batched = row_nats(tiny_model, rows)
    assert batched[0] == pytest.approx(-logs[3, 7].item(), abs=1e-5)
    assert batched == pytest.approx([row_nats(tiny_model, [row])[0] for row in rows], abs=1e-5)
