from __future__ import annotations

import pytest
import torch
from chat_families import family_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from test_masks import conversation, encode

from hf_recipes.data.collate import SupervisedCollator
from hf_recipes.data.masks import IGNORED


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
        assert batch["labels"][index].tolist() == row + [IGNORED] * padding
        assert batch["attention_mask"][index].tolist() == [1] * len(row) + [0] * padding


def test_d12_pad_equals_eos_keeps_the_real_end():
    tokenizer = family_tokenizer("chatml_marked")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.pad_token_id == end  # as in SmolLM2
    samples = [encode(tokenizer, conversation(["4"])), encode(tokenizer, conversation(["a longer answer", "4"]))]
    features = [{"input_ids": sample.input_ids, "labels": sample.labels} for sample in samples]
    batch = SupervisedCollator(tokenizer.pad_token_id)(features)
    assert (batch["labels"] == end).sum(dim=1).tolist() == [1, 2]
    padding = batch["input_ids"].shape[1] - len(samples[0].input_ids)
    assert padding > 0 and batch["labels"][0, -padding:].tolist() == [IGNORED] * padding


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_without_a_mask_is_the_loss_with_one(tiny_model, attention):
    tiny_model.set_attn_implementation(attention)
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, tiny_model.config.vocab_size, (length,), generator=generator).tolist()
        for length in (5, 17, 30)
    ]
    features = [{"input_ids": row, "labels": [IGNORED, *row[1:]]} for row in rows]
    losses = []
    for with_mask in (False, True):
        batch = SupervisedCollator(2, return_attention_mask=with_mask)(features)
        tiny_model.zero_grad()
        loss = tiny_model(**batch).loss
        loss.backward()
        gradient = torch.nn.utils.get_total_norm([p.grad for p in tiny_model.parameters() if p.grad is not None])
        losses.append((loss.item(), gradient.item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
