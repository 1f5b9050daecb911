"""How likely a model finds given tokens: the one measure behind the loss on text and the choice among answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from hf_recipes.core.labels import IGNORED_LABEL

_LOGITS_BYTES = 512 * 2**20  # logits in memory at once: in the model's dtype and again in float32


class TokenisedRow(TypedDict):
    """Token ids and, position by position, the same id where it is to be predicted, -100 elsewhere."""

    input_ids: list[int]
    labels: list[int]


def supervised_tokens(labels: Sequence[int]) -> int:
    """How many labels are predicted: the first position never is, nothing precedes it."""
    return sum(label != IGNORED_LABEL for label in labels[1:])


def continuation(context: Sequence[int], answer: Sequence[int]) -> TokenisedRow:
    """The row whose nats are those of `answer` after `context`, which holds at least one token."""
    return {"input_ids": [*context, *answer], "labels": [IGNORED_LABEL] * len(context) + list(answer)}


def nats_in_batches(model: Any, rows: Sequence[TokenisedRow]) -> Iterator[dict[int, float]]:
    """Give the negative log-likelihood of each row's labels, summed, in nats, batch by batch, by the row's index.

    Each batch's logits are summed up and let go; batches are cut so that logits take at most half a GiB, one row at
    the least. Rows are filled to the right, where causal attention does not look, so a row's nats are the same in any
    batch (up to rounding). The model's training mode is put back afterwards.

    Args:
        model: a causal LM, in its dtype on its device; the softmax is taken in float32.
        rows: see `TokenisedRow`; as everywhere, the label at position i is predicted from positions before i.
    """
    vocabulary = model.config.get_text_config().vocab_size
    batches = budget_batches([len(row["input_ids"]) for row in rows], _LOGITS_BYTES // (8 * vocabulary))
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            yield dict(zip(batch, _row_nats(model, [rows[index] for index in batch]), strict=True))
    finally:
        model.train(was_training)


def row_nats(model: Any, rows: Sequence[TokenisedRow]) -> list[float]:
    """`nats_in_batches` at once, in the order of the rows."""
    nats: dict[int, float] = {}
    for batch in nats_in_batches(model, rows):
        nats |= batch
    return [nats[index] for index in range(len(rows))]


def budget_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices in batches, longest first, whose rows filled to the longest hold at most `token_budget` tokens.

    A row longer than the budget stands alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _row_nats(model: Any, rows: list[TokenisedRow]) -> list[float]:
    import torch

    length = max(len(row["input_ids"]) for row in rows)

    def filled(values: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([value + [filler] * (length - len(value)) for value in values], device=model.device)

    ids = filled([row["input_ids"] for row in rows], 0)
    mask = filled([[1] * len(row["input_ids"]) for row in rows], 0)
    targets = filled([row["labels"] for row in rows], IGNORED_LABEL)[:, 1:]
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits[:, -length:-1]  # prompt tuning puts its virtual tokens in front
        predicted = targets != IGNORED_LABEL
        losses = torch.zeros(targets.shape, dtype=torch.float64, device=targets.device)
        losses[predicted] = torch.nn.functional.cross_entropy(
            logits[predicted].float(), targets[predicted], reduction="none"
        ).double()
    return [float(nats) for nats in losses.sum(1).tolist()]
