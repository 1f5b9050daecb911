"""What kept answers are measured by: each measure turns a line into contributions whose sums give the figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hf_recipes.evaluation.bootstrap import Statistic, ratio
from hf_recipes.evaluation.corpus_bleu import bleu_counts, bleu_of_sums
from hf_recipes.evaluation.gate import ALIASES, FORGETTING
from hf_recipes.evaluation.judges.text import TEXT_SCORES, bleu_tokenizer
from hf_recipes.evaluation.suite import EvaluationSuite

Line = Mapping[str, Any]
Unit = Literal["share", "nats", "number", "tokens", "seconds", "milliseconds"]
GENERAL = "general_nats"

_INSTRUCTIONS = {
    "instructions": "instructions followed (strict)",
    "instructions_lenient": "instructions followed (lenient)",
    "prompts": "prompts with all followed (strict)",
    "prompts_lenient": "prompts with all followed (lenient)",
}
_CHOICES = {"accuracy": "choices right", "accuracy_norm": "choices right, by likelihood per byte"}
_TEXT = {
    "exact_match": "exact match",
    "exact_match_squad": "exact match (SQuAD)",
    "f1": "token F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "bleu": "BLEU",
    "chrf": "chrF (mean of answers)",
}
_FORMAT = ("parses", "fits_schema", "format", "format_lenient", "extra_prose", "fields", "fields_right", "exact")
_PACE = ("answer_tokens", "cut", "seconds", "first_token_ms", "ms_per_token")
# What the evaluation itself measures: a function of the user's may return none of these.
OWN_NAMES = frozenset([*_FORMAT, *_PACE, *_INSTRUCTIONS, *_CHOICES, *_TEXT, GENERAL, FORGETTING, *ALIASES])


@dataclass(frozen=True)
class Measure:
    """One figure.

    Args:
        name: for gates and programs.
        label: for the table.
        unit: of the figure.
        parts: the sets whose lines count.
        contributions: of a line; all zero where it does not ask the question.
        statistic: from summed contributions to the figure.
        compared: whether a difference has an interval; times do not vary with the rows alone.
        aliases: other names that a gate may use.
    """

    name: str
    label: str
    unit: Unit
    parts: tuple[str, ...]
    contributions: Callable[[Line], Sequence[float]]
    statistic: Statistic = ratio
    compared: bool = True
    aliases: tuple[str, ...] = ()


def measures_of(lines: Sequence[Line], format_spec: Mapping[str, Any] | None = None) -> list[Measure]:
    """The measures that at least one of `lines`, of any model, has a say in, in the table's order."""
    domain = [line for line in lines if line["part"] == "domain"]
    every = [
        *_format_measures(format_spec),
        Measure("fields", "fields exactly right", "share", ("domain",), _fields, aliases=("fields_right",)),
        Measure("exact", _exact_label(domain), "share", ("domain",), partial(_verdict, "exact")),
        *_score_measures(domain),
        *(_scored(name, label, "instructions") for name, label in _INSTRUCTIONS.items()),
        *(_scored(name, label, "choices") for name, label in _CHOICES.items()),
        *(_scored(name, name, "tasks", "number") for name in _score_names(lines, "tasks")),
        Measure(GENERAL, "loss on general text", "nats", ("general",), _nats),
        Measure("answer_tokens", "tokens per answer", "tokens", ("domain", "instructions"), partial(_plain, "tokens")),
        Measure("cut", "answers cut at the limit", "share", ("domain", "instructions"), _cut),
        Measure(
            "seconds",
            "seconds per answer",
            "seconds",
            ("domain", "instructions"),
            partial(_plain, "seconds"),
            ratio,
            False,
        ),
        Measure(
            "first_token_ms",
            "time to first token (ms)",
            "milliseconds",
            ("latency",),
            partial(_plain, "first_ms"),
            ratio,
            False,
        ),
        Measure(
            "ms_per_token",
            "time per token after it (ms)",
            "milliseconds",
            ("latency",),
            partial(_plain, "token_ms"),
            ratio,
            False,
        ),
    ]
    return [measure for measure in every if _asked(measure, lines)]


def names_beforehand(suite: EvaluationSuite) -> list[str] | None:
    """All names that figures of this suite can have; None where a function or a task gives names of its own."""
    if suite.function is not None or suite.tasks:
        return None
    names: list[str] = []
    if suite.domain is not None:
        names += _FORMAT
        for score in suite.scores:
            names += TEXT_SCORES[score]("a", ["a"])
    names += _INSTRUCTIONS if suite.instructions is not None else []
    names += _CHOICES if suite.choices is not None else []
    names += [GENERAL, FORGETTING] if suite.general is not None else []
    if suite.domain is not None or suite.instructions is not None:
        names += _PACE
    return names


def _asked(measure: Measure, lines: Iterable[Line]) -> bool:
    return any(any(measure.contributions(line)) for line in lines if line["part"] in measure.parts)


def _format_measures(spec: Mapping[str, Any] | None) -> list[Measure]:
    parses = Measure("parses", "JSON that parses", "share", ("domain",), partial(_verdict, "parses"))
    if spec is None:
        return [Measure(**{**vars(parses), "aliases": ("format",)})]
    fits = "schema" in spec
    return [
        *([parses] if fits else []),
        Measure(
            "format",
            "JSON that fits the schema" if fits else f"{_format_name(spec)} (strict)",
            "share",
            ("domain",),
            partial(_format, "strict"),
            aliases=("fits_schema",) if fits else (),
        ),
        Measure(
            "format_lenient",
            "  the same, in or out of prose (lenient)",
            "share",
            ("domain",),
            partial(_format, "lenient"),
        ),
        Measure("extra_prose", "  prose around it", "share", ("domain",), partial(_format, "extra_prose")),
    ]


def _format_name(spec: Mapping[str, Any]) -> str:
    kind = next(iter(spec), "format")
    return {"json": "JSON that parses", "regex": "answers that match", "xml": "XML that parses"}.get(
        kind, f"{spec[kind]} code that parses"
    )


def _exact_label(domain: Sequence[Line]) -> str:
    has_fields = any(line["verdicts"].get("fields") for line in domain)
    return "all fields right" if has_fields else "answers exactly right"


def _score_measures(domain: Sequence[Line]) -> list[Measure]:
    """Text scores and those of the user's function; BLEU is one of the corpus."""
    found = []
    for name in _score_names(domain, "domain"):
        if name == "bleu":
            words = bleu_tokenizer([text for line in domain for text in _references(line)])
            counts = partial(_bleu, words)
            label = _TEXT[name] if words == "13a" else f"{_TEXT[name]} ({words})"
            found.append(Measure(name, label, "share", ("domain",), counts, bleu_of_sums))
        else:
            found.append(_scored(name, _TEXT.get(name, name), "domain", "share" if name in _TEXT else "number"))
    return found


def _score_names(lines: Sequence[Line], part: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines if line["part"] == part for name in line["scores"]))


def _scored(name: str, label: str, part: str, unit: Unit = "share") -> Measure:
    return Measure(name, label, unit, (part,), partial(_score, name))


def _score(name: str, line: Line) -> Sequence[float]:
    """A score is a number, or a sum with its count (the instructions of a prompt)."""
    value = line["scores"].get(name)
    if value is None:
        return (0.0, 0.0)
    return tuple(map(float, value)) if isinstance(value, (list, tuple)) else (float(value), 1.0)


def _verdict(name: str, line: Line) -> Sequence[float]:
    value = line["verdicts"].get(name)
    return (0.0, 0.0) if value is None else (float(value), 1.0)


def _format(name: str, line: Line) -> Sequence[float]:
    return (float(line["verdicts"]["format"][name]), 1.0)


def _fields(line: Line) -> Sequence[float]:
    fields = line["verdicts"].get("fields") or {}
    return (float(sum(fields.values())), float(len(fields)))


def _nats(line: Line) -> Sequence[float]:
    return (float(line["nats"]), float(line["tokens"]))


def _plain(key: str, line: Line) -> Sequence[float]:
    return (float(line[key]), 1.0)


def _cut(line: Line) -> Sequence[float]:
    return (float(not line["ended"]), 1.0)


def _references(line: Line) -> list[str]:
    return [line["reference"], *line.get("references", ())]


def _bleu(words: str, line: Line) -> Sequence[float]:
    return bleu_counts(line["answer"], _references(line), words)
