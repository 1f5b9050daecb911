"""evaluation.json: the figures of all models, and the keys that pages, cards and gates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from hf_recipes.core.log import logger
from hf_recipes.core.versions import stack_versions
from hf_recipes.evaluation.figures import Figure, figures_of, gate_figures
from hf_recipes.evaluation.gate import FORGETTING, check_gate, check_names
from hf_recipes.evaluation.general import text_loss
from hf_recipes.evaluation.kept import Line
from hf_recipes.evaluation.prepared import Evaluation
from hf_recipes.evaluation.scoring import DomainScores, Verdict, share, tally
from hf_recipes.evaluation.sides import BASE, TUNED
from hf_recipes.evaluation.table import columns, two_columns

SCHEMA = 1
KEPT_ROWS = 64  # rows whose answers are written out, so that evaluation.json stays readable
_VERDICT = [field.name for field in fields(Verdict)]


def document(evaluation: Evaluation, lines: Mapping[str, Sequence[Line]], seconds: float) -> dict[str, Any]:
    """Put evaluation.json together, write it, judge the gate, and return it.

    Raises:
        UserError: the gate names a figure that there is not.
    """
    figures = figures_of(lines, evaluation.reference, evaluation.suite.format_spec)
    result: dict[str, Any] = {"schema": SCHEMA, "table": two_columns(figures)}
    result |= {side: summary(lines[side]) for side in (BASE, TUNED) if side in lines}
    result["change"] = _changes(result, figures)
    result |= {
        "reference": evaluation.reference,
        "sides": {side.name: {"model": side.model, "adapter": side.adapter} for side in evaluation.sides},
        "figures": [figure.to_dict() for figure in figures],
        "rows": _rows(lines),
        "settings": {**_settings(evaluation), "dtype": evaluation.dtype, "decoding": "greedy"},
        "versions": stack_versions(),
        "seconds": seconds,
    }
    result["columns"], result["side_by_side"] = columns(result)
    _warn_of_cut_answers(lines[TUNED], evaluation.suite.max_new_tokens)
    if evaluation.gate:
        values = gate_figures(figures)
        evaluation.run.write(evaluation.run.evaluation_json, result)  # kept, should a name be wrong
        check_names(evaluation.gate, values, list(lines))
        result["gate"] = [asdict(outcome) for outcome in check_gate(evaluation.gate, values, TUNED)]
    evaluation.run.write(evaluation.run.evaluation_json, result)
    return result


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """One model's lines summed up as `DomainScores`, `TextLoss`, and the pace."""
    domain = [line for line in lines if line["part"] == "domain"]
    general = [line for line in lines if line["part"] == "general"]
    loss = text_loss([float(line["nats"]) for line in general], [line["tokens"] for line in general])
    seconds = sum(line["seconds"] for line in domain)
    return {
        "domain": asdict(domain_scores(domain)),
        "general": None if loss is None else asdict(loss),
        "cut_answers": sum(not line["ended"] for line in domain),
        "seconds_per_answer": seconds / len(domain) if domain else None,
        "tokens_per_second": sum(line["tokens"] for line in domain) / seconds if seconds else None,
    }


def domain_scores(domain: Sequence[Line]) -> DomainScores:
    """What `tally` makes of the verdicts in the lines."""
    return tally([Verdict(**{name: line["verdicts"].get(name) for name in _VERDICT}) for line in domain])


def _changes(result: Mapping[str, Any], figures: Sequence[Figure]) -> dict[str, float | None]:
    """Tuned minus base: shares in [-1, 1], the general loss in nats per token; empty without the base."""
    if BASE not in result:
        return {}
    rise = next((figure.values.get(TUNED) for figure in figures if figure.name == FORGETTING), None)
    changes: dict[str, float | None] = {"forgetting": rise}
    for name in ("parses", "fits_schema", "fields_right", "exact"):
        before, after = result[BASE]["domain"][name], result[TUNED]["domain"][name]
        changes[name] = None if before is None or after is None else after - before
    return changes


def _rows(lines: Mapping[str, Sequence[Line]]) -> list[dict[str, Any]]:
    """The first rows with every model's answer and verdicts."""
    domain = {side: [line for line in some if line["part"] == "domain"][:KEPT_ROWS] for side, some in lines.items()}
    return [
        _row(line, {side: some[index] for side, some in domain.items()}) for index, line in enumerate(domain[TUNED])
    ]


def _row(line: Line, answers: Mapping[str, Line]) -> dict[str, Any]:
    sides = {
        side: {"answer": each["answer"], **each["verdicts"], **({"scores": each["scores"]} if each["scores"] else {})}
        for side, each in answers.items()
    }
    return {"line": line["line"], "prompt": line["prompt"], "reference": line["reference"], **sides}


def _settings(evaluation: Evaluation) -> dict[str, Any]:
    """The suite's keys that say something; the gate has its own place, the rating its own file."""
    suite = evaluation.suite
    sources = {key: source.given for key in ("domain", "general") if (source := getattr(suite, key)) is not None}
    settings = {key: value for key, value in {**vars(suite), **sources}.items() if key not in ("gate", "rating")}
    return {key: value for key, value in settings.items() if value or key in ("domain", "schema", "general")}


def _warn_of_cut_answers(tuned: Sequence[Line], limit: int) -> None:
    generated = [line["ended"] for line in tuned if line["part"] in ("domain", "instructions")]
    if generated and share(generated) != 1:
        logger.warning(
            f"{generated.count(False)} of {len(generated)} tuned answers met the limit of {limit} tokens without "
            "an end token: raise --max-new-tokens, or check by `hf-recipes inspect` that the end of turn is trained."
        )
