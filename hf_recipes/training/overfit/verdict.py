"""From what was measured to what it means: passed, not reached within the budget, or what is broken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hf_recipes.training.overfit.cause import Cause
from hf_recipes.training.overfit.data_faults import DATA_RULES, DATA_SUSPICIONS
from hf_recipes.training.overfit.evidence import Evidence
from hf_recipes.training.overfit.floor import loss_bound
from hf_recipes.training.overfit.learning_faults import LEARNING_RULES, learns_nothing

Status = Literal["passed", "unfinished", "failed"]
# In the order in which they are to be mended: what is certain first, what statistics say last.
_RULES = (*DATA_RULES, *LEARNING_RULES, *DATA_SUSPICIONS)


@dataclass(frozen=True)
class Verdict:
    """What the test came to; `causes` are ranked, the first is what to mend first."""

    status: Status
    bound: float
    causes: tuple[Cause, ...] = ()


def judge(evidence: Evidence) -> Verdict:
    """Pure: the same evidence, the same verdict.

    A loss that falls shows that gradients arrive and the optimizer follows them; it does not show that the data is
    right, since a network learns random labels by heart too (Zhang et al. 2017, arXiv:1611.03530). So faults of the
    data are told by what was measured before the first step, and fail the test whatever the loss did.
    """
    start = _start(evidence)
    bound = loss_bound(start, evidence.floor) if math.isfinite(start) else math.nan
    causes = tuple(cause for rule in _RULES for cause in rule(evidence)) or tuple(learns_nothing(evidence))
    if causes:
        return Verdict("failed", bound, causes)
    if evidence.passes is not None and min(evidence.passes.losses) <= bound:
        return Verdict("passed", bound)
    return Verdict("unfinished", bound)


def _start(evidence: Evidence) -> float:
    if evidence.passes is not None and evidence.passes.losses:
        return evidence.passes.losses[0]
    return evidence.shift_losses[1] if evidence.shift_losses else math.nan
