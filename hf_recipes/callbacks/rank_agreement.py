"""The pure rules behind `RankWatch` on what all ranks must say alike: the start, each step, the parameters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

Kind = Literal["start", "step", "gradient", "parameters"]

# Reduced gradients are the same bits on all ranks; the room is for norms summed on devices of different kinds.
_NORM_TOLERANCE = 1e-4
_RANKS_TOLD = 4


def _fact(name: str, advice: str) -> Any:
    return field(metadata={"name": name, "advice": advice})


_ONE_RECIPE = "start all ranks from one recipe"
_SAME_DATA = "let all ranks read the same files in the same order, and leave sharing them out to the Trainer"
_SAME_MODEL = "build the model alike on all ranks: same base, same method, same seed"


@dataclass(frozen=True)
class StartFacts:
    """What one rank says before the first step. None: unknown there, and not compared.

    `rows` is the length of the training set, `batches` what this rank's loader gives in an epoch, `fingerprint` and
    `sampled_rows` (a digest of some rows' content) those of a `datasets.Dataset`, `parameters` a digest of names and
    shapes of all trainable tensors, `versions` one text.
    """

    world_size: int = _fact("the world size", "look at the launcher's settings on each machine")
    seed: int = _fact("the seed", "set the same seed on all ranks")
    data_seed: int | None = _fact("data_seed", "set the same data_seed on all ranks")
    max_steps: int = _fact("the number of steps", f"{_ONE_RECIPE} (max_steps, num_train_epochs), and {_SAME_DATA}")
    micro_batches: int = _fact("gradient_accumulation_steps", _ONE_RECIPE)
    rows: int | None = _fact("the number of training rows", _SAME_DATA)
    batches: int | None = _fact("the number of batches", _SAME_DATA)
    sampled_rows: str | None = _fact("the content of the training rows", _SAME_DATA)
    trainable: int = _fact("the number of trainable tensors", _SAME_MODEL)
    parameters: str = _fact("names and shapes of the trainable tensors", _SAME_MODEL)
    versions: str = _fact("the libraries' versions", "install the same versions on all machines")
    fingerprint: str | None = None  # told only: a function that cannot be hashed gives each process one of its own


class Share(Protocol):
    """What one rank says of a step (see `RankShare`)."""

    @property
    def step(self) -> int: ...

    @property
    def micro_batches(self) -> int: ...

    @property
    def norm(self) -> float | None: ...


@dataclass(frozen=True)
class Disagreement:
    """One thing the ranks say differently. `values` are in rank order."""

    kind: Kind
    step: int
    sentence: str
    what: str
    values: list[Any]


class RankAgreement:
    """Compares what the ranks say; one verdict for each unbroken series of one kind."""

    def __init__(self) -> None:
        self.in_series: set[str] = set()

    def judge_start(self, step: int, facts: Sequence[StartFacts]) -> list[Disagreement]:
        """All facts that differ, before the first step."""
        found = []
        for spec in fields(StartFacts):
            values = [getattr(each, spec.name) for each in facts]
            if spec.metadata and _differ(value for value in values if value is not None):
                differs = f"{spec.metadata['name']} is not the same on all ranks ({by_value(values)})"
                sentence = f"Before step {step + 1}: {differs}. What to do: {spec.metadata['advice']}."
                found.append(Disagreement("start", step, sentence, spec.name, values))
        return found

    def judge_step(self, shares: Sequence[Share], compare_norms: bool) -> list[Disagreement]:
        """Steps, micro-batches and, where every rank holds the same gradients (`compare_norms`), their norms.

        A norm that is not finite is another watcher's business, and changes no series here.
        """
        step = max(share.step for share in shares)
        counts = [(share.step, share.micro_batches) for share in shares]
        found = [
            self._new(_differ(counts), "step", step, "step, micro_batches", counts, _of_step(step, shares)),
        ]
        norms = [share.norm for share in shares if share.norm is not None and math.isfinite(share.norm)]
        if compare_norms and len(norms) == len(shares):
            apart = max(norms) - min(norms) > _NORM_TOLERANCE * max(norms)
            told = by_value([f"{norm:.6g}" for norm in norms])
            sentence = (
                f"Step {step}: after the ranks' gradients were averaged, their norm is not the same on all of them "
                f"({told}), so the ranks train apart. What to do: call the model that the Trainer wrapped, not the one "
                "inside; change no gradient on one rank alone; look for a forward pass that skips parameters on some "
                "ranks."
            )
            found.append(self._new(apart, "gradient", step, "norm", list(norms), sentence))
        return [each for each in found if each is not None]

    def judge_parameters(
        self, step: int, checksums: Sequence[Sequence[int]], names: Sequence[str]
    ) -> Disagreement | None:
        """Checksums of the trainable tensors, one list a rank in the order of `names`, where all hold the same ones."""
        apart = [name for name, *sums in zip(names, *checksums, strict=False) if _differ(sums)]
        values = [hash_of(sums) for sums in checksums]
        first = f", the first {apart[0]}" if apart else ""
        sentence = (
            f"After step {step}: {len(apart)} of {len(names)} trainable tensors are not the same on all ranks{first} "
            f"(checksums: {by_value(values)}), so the ranks train apart. What to do: change weights on all ranks alike "
            "or not at all (in callbacks too); load the same checkpoint everywhere; go back to a checkpoint from "
            "before, since averaging gradients does not bring weights together again."
        )
        return self._new(_differ(values), "parameters", step, "checksums", values, sentence)

    def _new(
        self, differs: bool, kind: Kind, step: int, what: str, values: list[Any], sentence: str
    ) -> Disagreement | None:
        first = differs and kind not in self.in_series
        (self.in_series.add if differs else self.in_series.discard)(kind)
        return Disagreement(kind, step, sentence, what, values) if first else None

    def state_dict(self) -> dict[str, Any]:
        """The series that are open."""
        return {"in_series": sorted(self.in_series)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the series of `state_dict`."""
        self.in_series = set(state["in_series"])


def by_value(values: Sequence[Hashable]) -> str:
    """``rank 0: 5; ranks 1 and 2: 7``, for a sentence."""
    groups: dict[Hashable, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return "; ".join(f"{rank_names(ranks)}: {value}" for value, ranks in groups.items())


def rank_names(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0 and 2``, ``ranks 0, 1, 2, 3 and 4 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _RANKS_TOLD + 1:
        return f"ranks {', '.join(map(str, ranks[:_RANKS_TOLD]))} and {len(ranks) - _RANKS_TOLD} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def hash_of(checksums: Sequence[int]) -> str:
    """One short text for many checksums, the same in every process."""
    total = 0
    for checksum in checksums:
        total = (total * 0x100000001B3 + checksum) % 2**64  # FNV's prime: position counts
    return f"{total:016x}"


def _of_step(step: int, shares: Sequence[Share]) -> str:
    told = by_value([f"step {share.step}, {share.micro_batches} micro-batches" for share in shares])
    return (
        f"Step {step}: the ranks are not at the same place ({told}). What to do: give all ranks the same number of "
        "rows and the same gradient_accumulation_steps, and let no callback stop an epoch on one rank alone."
    )


def _differ(values: Iterable[Hashable]) -> bool:
    return len(set(values)) > 1
