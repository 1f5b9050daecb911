"""The overfit test: a handful of the run's own rows learned by heart, and the model put back as it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.training.overfit.budget import (
    LEAST_ROWS,
    SECONDS,
    STEP_IN_FORWARDS,
    Plan,
    budget_seconds,
    plan_test,
)
from hf_recipes.training.overfit.data_faults import DATA_RULES, knows_below
from hf_recipes.training.overfit.evidence import Evidence, RateFacts
from hf_recipes.training.overfit.facts import broken_markers, data_facts
from hf_recipes.training.overfit.floor import Row, entropy_floor, loss_bound, plain_row
from hf_recipes.training.overfit.gradients import GradientFacts
from hf_recipes.training.overfit.losses import SHIFTS, Collator, LossOfRows
from hf_recipes.training.overfit.passes import FewRows, Passes, learn_by_heart, own_rate, try_rate
from hf_recipes.training.overfit.probes import answer_facts, precision_facts, template_facts
from hf_recipes.training.overfit.samples import cut_row, draw_rows, in_batches, shortest_first, trained_tokens
from hf_recipes.training.overfit.snapshot import Snapshot, as_it_was, without_dropout
from hf_recipes.training.overfit.tell import details, result_text
from hf_recipes.training.overfit.verdict import Verdict, judge

SAMPLES = 100
_MICRO_BATCH = 8


@dataclass(frozen=True)
class RunFacts:
    """What the test may know of the run it stands before.

    Attributes:
        learning_rate: the peak that the recipe asks for; None: not judged.
        steps: optimizer steps of the run; 0 where not known.
        rows: rows that this process will compute in it; 0 where not known.
        micro_batch: rows that fit into memory at once.
        limit_seconds: the test takes no longer, whatever the run takes (other ranks wait for it).
    """

    learning_rate: float | None = None
    steps: int = 0
    rows: int = 0
    micro_batch: int = _MICRO_BATCH
    limit_seconds: float = math.inf


@dataclass(frozen=True)
class OverfitResult:
    """What was measured and what it means; as text, one paragraph."""

    evidence: Evidence
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """Whether nothing is broken: passed, or not reached within the budget."""
        return self.verdict.status != "failed"

    def __str__(self) -> str:
        return result_text(self.evidence, self.verdict)

    def details(self) -> list[tuple[str, str]]:
        """All measurements as name and value."""
        return details(self.evidence, self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``status``, ``sentence``, ``bound``, ``causes`` and everything measured."""
        return {
            "schema": 1,
            "sentence": str(self),
            **asdict(self.verdict),
            "evidence": asdict(self.evidence),
        }


def overfit_test(
    model: nn.Module,
    dataset: Any,
    collator: Collator | None = None,
    *,
    samples: int = SAMPLES,
    seconds: float = SECONDS,
    tokenizer: Any = None,
    own_template: str | None = None,
    run: RunFacts | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    seed: int = 0,
    directory: Path | None = None,
) -> OverfitResult:
    """Learn some rows by heart and say whether data, model, method, precision and learning rate are sound.

    Works in anybody's script, before ``trainer.train()``::

        from hf_recipes import overfit_test
        result = overfit_test(trainer.model, trainer.train_dataset, trainer.data_collator)
        print(result)

    The model, its gradients, its modes and all random states are afterwards as before, bit for bit: what is trained is
    copied, into main memory or, where that is scarce, into a file.

    Args:
        model: A causal language model of `transformers`, wrapped by PEFT or not, on its device and in one piece.
        dataset: Rows with ``input_ids``, and ``labels`` (−100 where not trained) unless the collator makes them.
        collator: The trainer's. Ours, or None, pads rows as they are.
        samples: Rows drawn at random (of a stream: the first); as many of them are learned as the budget allows, at
            least 8, the shortest.
        seconds: The budget, or a tenth of the run's time where `run` tells how long that is and it is more.
        tokenizer: Finds templates of other models. Optional.
        own_template: The chat template that came with the base, if another one is in use.
        run: Lets the run's learning rate be judged, and the budget grow with it.
        autocast: Opens the precision that the run computes in (``trainer.accelerator.autocast``).
        seed: Which rows are drawn.
        directory: Where copies go that do not fit into memory.

    Raises:
        UserError: the model is not one that can be tested: spread over ranks, or without token inputs.
    """
    start = time.perf_counter()
    run = run or RunFacts()
    rows = _rows(dataset, collator, samples, seed)
    broken = broken_markers(rows, tokenizer.decode, tokenizer.get_vocab()) if tokenizer is not None else ()
    evidence = Evidence(data_facts(rows, broken), vocabulary=_vocabulary(model))
    if not any(cause for rule in DATA_RULES for cause in rule(evidence)):  # else no training could show more
        losses = LossOfRows(model, _plain_collator(tokenizer, collator), autocast)
        with as_it_was(model, directory) as snapshot, without_dropout(model):
            test = _Test(losses, rows, run, seconds, start, snapshot)
            evidence = replace(evidence, copied_bytes=snapshot.size_bytes, copied_to=snapshot.place)
            evidence = test.measure(evidence, tokenizer, own_template)
    evidence = replace(evidence, seconds=time.perf_counter() - start)
    return OverfitResult(evidence, judge(evidence))


@dataclass(frozen=True)
class _Test:
    """One test under way: what stays the same while evidence is gathered."""

    losses: LossOfRows
    rows: Sequence[Row]
    run: RunFacts
    seconds: float
    start: float
    snapshot: Snapshot

    def measure(self, evidence: Evidence, tokenizer: Any, own_template: str | None) -> Evidence:
        """Gather evidence, in the order of its cost, until something is broken beyond training or all is there."""
        short = [row for row in shortest_first(map(cut_row, self.rows)) if trained_tokens(row)]
        shifts, known, row_seconds = self._shift_losses(short[:LEAST_ROWS])
        is_bad = not math.isfinite(shifts[SHIFTS.index(0)])
        precision = precision_facts(self.losses, short[:LEAST_ROWS], is_bad=is_bad)
        plan = self._plan(short, row_seconds)
        evidence = replace(evidence, shift_losses=shifts, precision=precision, budget_seconds=plan.seconds)
        if is_bad:
            return evidence
        if plan.answer_rows:
            rows = short[: plan.answer_rows]
            answers = answer_facts(self.losses, rows, self._at_once(rows), known, knows_below(evidence.vocabulary))
            evidence = replace(evidence, answers=answers)
        if tokenizer is not None and own_template is not None:
            evidence = replace(evidence, template=template_facts(self.losses, tokenizer, own_template))
        return self._train(evidence, short[: plan.learned_rows], plan)

    def _at_once(self, rows: Sequence[Row]) -> int:
        """How many of these rows, which are cut, have room where the run's micro-batch has: up to 8."""
        room = self.run.micro_batch * max(len(row["input_ids"]) for row in self.rows)
        return max(1, min(_MICRO_BATCH, room // max(len(row["input_ids"]) for row in rows)))

    def _shift_losses(self, rows: Sequence[Row]) -> tuple[tuple[float, float, float], list[float], float]:
        """Losses by shift, those of each row as it is, and the seconds of a row's forward pass."""
        self.losses.by_shift(rows[:1])  # the first pass loads kernels
        before = time.perf_counter()
        by_row = torch.cat([self.losses.by_shift(batch) for batch in in_batches(rows, self._at_once(rows))])
        seconds = (time.perf_counter() - before) / len(rows)
        # NaN where a row has no label at a shift; a loss that is not finite must stay seen
        early, there, late = (column[~column.isnan()].mean().item() for column in by_row.T)
        own = by_row[:, SHIFTS.index(0)]
        return (early, math.nan if own.isnan().any() else there, late), own.tolist(), seconds

    def _plan(self, short: Sequence[Row], row_seconds: float) -> Plan:
        measured = short[:LEAST_ROWS]
        token_seconds = row_seconds * len(measured) / sum(len(row["input_ids"]) for row in measured)
        mean_length = sum(len(row["input_ids"]) for row in self.rows) / len(self.rows)
        planned = STEP_IN_FORWARDS * token_seconds * mean_length * self.run.rows
        return plan_test(
            budget_seconds(planned, self.seconds, self.run.limit_seconds),
            row_seconds * max(1.0, _mean_length(short) / _mean_length(measured)),
            len(short),
        )

    def _train(self, evidence: Evidence, learned: Sequence[Row], plan: Plan) -> Evidence:
        few = FewRows(self.losses, in_batches(learned, self._at_once(learned)))
        floor = entropy_floor(learned)
        begun, gradients, rate = self._at_recipes_rate(few, plan, floor)
        start = begun.losses[0]
        evidence = replace(evidence, learned_rows=len(learned), floor=floor, gradients=gradients, rate=rate)
        if not gradients.norm or not math.isfinite(start + gradients.norm):
            return evidence
        passes = learn_by_heart(
            few,
            loss_bound(start, floor),
            max(0.0, plan.seconds - (time.perf_counter() - self.start)),
            self.snapshot,
            rate=own_rate(self.losses.model, start - floor, gradients.absolute_sum),
            begun=begun if len(begun.losses) <= 2 else None,
        )
        return replace(evidence, passes=passes)

    def _at_recipes_rate(
        self, few: FewRows, plan: Plan, floor: float
    ) -> tuple[Passes, GradientFacts, RateFacts | None]:
        """The passes at the recipe's learning rate, the gradients before the first step, and what it did; the model is
        as before."""
        rate = self.run.learning_rate
        passes, gradients = try_rate(few, rate or 0.0, plan.rate_steps, floor)
        facts = None
        if rate is not None and gradients.norm and math.isfinite(passes.losses[0] + gradients.norm):
            facts = RateFacts(passes, self.run.steps, *self.snapshot.moved())
        self.snapshot.put_back()
        return passes, gradients, facts


def _mean_length(rows: Sequence[Row]) -> float:
    return sum(len(row["input_ids"]) for row in rows) / len(rows)


def _vocabulary(model: nn.Module) -> int:
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])


def _rows(dataset: Any, collator: Collator | None, samples: int, seed: int) -> list[Row]:
    """Rows as they are, or as a collator that is not ours makes them of single ones."""
    if collator is None or isinstance(collator, SupervisedCollator):
        return [plain_row(row) for row in draw_rows(dataset, samples, seed)]
    return [_collated(collator, row) for row in draw_rows(dataset, samples, seed)]


def _collated(collator: Collator, row: Any) -> Row:
    batch = collator([row])
    mask = batch.get("attention_mask")
    kept = torch.ones_like(batch["input_ids"][0]) if mask is None else mask[0]
    return {key: batch[key][0][kept.bool()].tolist() for key in ("input_ids", "labels")}


def _plain_collator(tokenizer: Any, collator: Collator | None) -> SupervisedCollator:
    if isinstance(collator, SupervisedCollator):
        return replace(collator, one_row=False)
    pad = getattr(tokenizer, "pad_token_id", None)
    return SupervisedCollator(pad if pad is not None else 0)
