"""Prepared data, looked at as a run will train on it: one function, plain data out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_recipes.data.batching.collate import SupervisedCollator, padding_share
from hf_recipes.data.inspection.batches import view_batches
from hf_recipes.data.inspection.facts import FrequentAnswer, Inspection, TokenFacts, TokenShare
from hf_recipes.data.inspection.histogram import histogram
from hf_recipes.data.inspection.loader import Collator, LoaderSettings, TrainingRows, epoch_order, train_loader
from hf_recipes.data.inspection.remarkable import placeholder_answers, template_preamble
from hf_recipes.data.inspection.round_trip import RoundTrip
from hf_recipes.data.inspection.scan import TokenScan, scan_tokens
from hf_recipes.data.inspection.verdicts import judge

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_recipes.data.batching.packing import Bins
    from hf_recipes.data.prepare import PreparedData

TOP_TOKENS = 10
_ROWS_FOR_PREAMBLE = 32
_ANSWER_SHOWN = 80


def inspect_data(
    data: PreparedData,
    tokenizer: Any,
    *,
    loader: LoaderSettings | None = None,
    collator: Collator | None = None,
    bins: Bins | None = None,
    batches: int = 5,
    round_trips: Sequence[RoundTrip] = (),
    recipe: str = "",
    model: str = "",
) -> Inspection:
    """Look at prepared data as a run will train on it, and judge it.

    Args:
        data: what `prepare_data` returned.
        tokenizer: the one it was prepared with.
        loader: what decides which samples meet in a batch; by default the Trainer's defaults.
        collator: the run's; by default a `SupervisedCollator`.
        bins: where samples are packed, which of them share a row.
        batches: how many batches to decode; an epoch may have fewer.
        round_trips: what `round_trip` found in the sources' rows.
        recipe: names, to be shown.
        model: likewise.
    """
    loader = loader or LoaderSettings()
    collator = collator or SupervisedCollator(pad_token_id=tokenizer.pad_token_id)
    scan = scan_tokens(
        data.train,
        chat_sources=[source["source"] for source in data.report["sources"] if source["format"] != "text"],
        end_of_turn_id=(data.report.get("end_of_turn") or {}).get("token_id"),
        bos_token_id=tokenizer.bos_token_id,
    )
    rows = TrainingRows(data.train, bins)
    order = epoch_order(rows, loader)
    views = list(view_batches(train_loader(rows, order, collator, loader), rows, tokenizer, batches, loader))
    inspection = Inspection(
        recipe=recipe,
        model=model,
        loader=loader,
        report=data.report,
        batches_asked=batches,
        batches=views,
        padding_share=padding_share(
            rows.lengths()[order], loader.batch_size, getattr(collator, "pad_to_multiple_of", 1)
        ),
        packed=bins is not None,
        tokens=replace(_facts(scan, tokenizer), preamble=_preamble_in(data.train, tokenizer)),
        round_trips=list(round_trips),
    )
    return replace(inspection, verdicts=judge(inspection))


def _facts(scan: TokenScan, tokenizer: Any) -> TokenFacts:
    heaviest = None
    if scan.heaviest is not None:
        text = _decode(tokenizer, scan.heaviest.token_ids)
        heaviest = FrequentAnswer(
            text if len(text) <= _ANSWER_SHOWN else text[:_ANSWER_SHOWN] + "…", scan.heaviest.count
        )
    return TokenFacts(
        rows=scan.rows,
        of_rows=scan.of_rows,
        lengths=histogram(scan.lengths),
        learned=histogram(scan.learned),
        conversations=scan.conversations,
        answers=scan.answers,
        first_tokens=_top(scan.first, tokenizer),
        last_tokens=_top(scan.last, tokenizer),
        ends={source: (ends.samples, ends.learn_it) for source, ends in scan.ends.items()},
        doubled_bos=scan.doubled_bos,
        heaviest_answer=heaviest,
        placeholders=placeholder_answers(scan.short, tokenizer),
    )


def _preamble_in(train: Dataset, tokenizer: Any) -> str:
    """What the template says by itself, where one of the first rows has it."""
    preamble = template_preamble(tokenizer)
    texts = (_decode(tokenizer, ids) for ids in train[:_ROWS_FOR_PREAMBLE]["input_ids"])
    return preamble if preamble and any(preamble in " ".join(text.split()) for text in texts) else ""


def _top(counts: Counter[int], tokenizer: Any) -> list[TokenShare]:
    total = counts.total()
    return [
        TokenShare(token, _decode(tokenizer, [token]), count, count / total)
        for token, count in counts.most_common(TOP_TOKENS)
    ]


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
