"""All that an overfit test measured, as plain numbers; what they mean is decided in `verdict`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hf_recipes.training.overfit.facts import DataFacts
from hf_recipes.training.overfit.gradients import GradientFacts
from hf_recipes.training.overfit.passes import Passes


@dataclass(frozen=True)
class AnswerFacts:
    """Do the answers belong to their prompts, by what the untrained model thinks of them.

    Attributes:
        rows: answers compared.
        own: mean loss (nats a token) of the answers after their own prompts.
        others: the same after the prompt of another row each.
        wins: share of the rows whose answer is likelier after its own prompt.
        z: mean of (own − others) over rows, in units of its standard error: far below 0 where answers belong.
        prompts: mean loss of what the prompts themselves do not have in common: whether the model knows the language at
            all; infinite where it was not measured.
    """

    rows: int
    own: float
    others: float
    wins: float
    z: float
    prompts: float = math.inf


@dataclass(frozen=True)
class TemplateFacts:
    """One and the same conversation, rendered by the template in use and by the one that the base came with.

    Attributes:
        used: loss of the conversation after its first question, in nats (a sum), by the template in use.
        own: by the base's own.
    """

    used: float
    own: float


@dataclass(frozen=True)
class PrecisionFacts:
    """Attributes:
    trained_dtype: of most trained numbers, as torch names it (``float16``).
    computes_in: what the products are computed in.
    bad_weight: the first parameter that holds a number that is not finite; empty where there is none.
    bad_module: the first module whose output is not finite; empty where there is none.
    """

    trained_dtype: str
    computes_in: str
    bad_weight: str = ""
    bad_module: str = ""


@dataclass(frozen=True)
class RateFacts:
    """A few steps at the recipe's learning rate.

    Attributes:
        passes: what they did.
        planned_steps: optimizer steps of the run; 0 where not known.
        moved: length of the change of the trained parameters against their own length.
        changed_share: share of the trained numbers that changed at all.
    """

    passes: Passes
    planned_steps: int
    moved: float
    changed_share: float


@dataclass(frozen=True)
class Evidence:
    """Everything measured; what could not be, or was not reached, is None.

    Attributes:
        data: of all rows drawn.
        learned_rows: how many of them were to be learned by heart.
        floor: their own entropy floor, nats a supervised token.
        vocabulary: size, for what a guess costs.
        shift_losses: loss with labels one place early, as they are, one place late, before the first step.
        budget_seconds: what the test could take.
        seconds: what it took.
        copied_bytes: size of the copies that the model was put back from.
        copied_to: where they were: ``memory``, or the name of a file.
    """

    data: DataFacts
    learned_rows: int = 0
    floor: float = 0.0
    vocabulary: int = 0
    shift_losses: tuple[float, float, float] | None = None
    precision: PrecisionFacts | None = None
    answers: AnswerFacts | None = None
    template: TemplateFacts | None = None
    gradients: GradientFacts | None = None
    rate: RateFacts | None = None
    passes: Passes | None = None
    budget_seconds: float = 0.0
    seconds: float = 0.0
    copied_bytes: int = 0
    copied_to: str = ""
