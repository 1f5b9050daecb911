from __future__ import annotations

import pytest

from hf_recipes.evaluation.figures import figures_of, gate_figures
from hf_recipes.evaluation.table import difference_cell, render_document


def general(key: str, nats: float, tokens: int) -> dict:
    return {"part": "general", "key": key, "nats": nats, "tokens": tokens}


def answer(key: str, exact: bool, **more) -> dict:
    line = {"part": "domain", "key": key, "tokens": 3, "ended": True, "seconds": 0.5, "scores": {}}
    return {**line, "verdicts": {"exact": exact, "parses": None, "fields": None}, **more}


def task(values: list[float], metric: float) -> dict:
    results = {"arc": {"metrics": {"acc": metric, "perplexity": 7.5}, "samples": {"acc": values}}}
    return {"part": "tasks", "key": "tasks-1", "task": "arc.yaml", "results": results}


def by_name(lines: dict, reference: str = "base", spec: dict | None = None) -> dict:
    return {figure.name: figure for figure in figures_of(lines, reference, spec)}


def test_a_loss_is_compared_by_sums_over_the_same_rows():
    base = [general(f"r{index}", 2.0 * tokens, tokens) for index, tokens in enumerate((1, 3, 6, 2, 8, 4, 5, 7))]
    tuned = [{**line, "nats": line["nats"] + 0.5 * line["tokens"]} for line in base]
    found = by_name({"base": base, "tuned": tuned})
    assert found["general_nats"].values == {"base": 2.0, "tuned": 2.5}
    difference = found["forgetting"].differences["tuned"]
    # every row loses half a nat a token, so every resample does
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.5, 0.5, 0.5))
    assert difference.sure
    assert gate_figures(list(found.values()))["forgetting"] == {"tuned": 0.5}


def test_rows_of_another_tokenizer_are_not_compared():
    found = by_name(
        {"base": [general("a", 2, 1), general("b", 2, 1)], "other": [general("x", 4, 3), general("y", 4, 3)]}
    )
    assert found["general_nats"].values["other"] == pytest.approx(4 / 3)
    assert found["general_nats"].differences == {}
    assert "forgetting" not in found


def test_times_and_single_rows_have_no_interval():
    lines = [answer("a", True), {"part": "latency", "key": "latency", "first_ms": 20.0, "token_ms": 5.0}]
    found = by_name({"base": lines, "tuned": lines})
    assert found["ms_per_token"].values == {"base": 5.0, "tuned": 5.0}
    assert found["ms_per_token"].differences == {}
    assert str(found["exact"].differences["tuned"].low) == "nan"


def test_a_task_is_compared_by_its_documents_where_its_metric_is_their_mean():
    found = by_name({"base": [task([0, 0, 1, 0], 0.25)], "tuned": [task([1, 1, 1, 0], 0.75)]})
    assert found["arc.acc"].values == {"base": 0.25, "tuned": 0.75}
    difference = found["arc.acc"].differences["tuned"]
    assert (difference.value, difference.low, difference.sure) == (0.5, 0.0, False)
    assert found["arc.perplexity"].values["tuned"] == 7.5
    assert difference_cell("number", found["arc.perplexity"].to_dict()["differences"]["tuned"]) == "+0.000"


def test_the_format_of_a_suite_has_its_names():
    verdict = {"strict": True, "lenient": True, "extra_prose": False, "why": ""}
    line = answer("a", True)
    line["verdicts"]["format"] = verdict
    found = by_name({"base": [line], "tuned": [line]}, spec={"json": True})
    assert found["format"].label == "JSON that parses (strict)"
    assert "fits_schema" not in gate_figures(list(found.values()))
    with_reference = {**line, "verdicts": {**line["verdicts"], "parses": True}}
    plain = gate_figures(figures_of({"base": [with_reference]}, "base"))
    assert plain["format"] == plain["parses"] == {"base": 1.0}


def test_the_table_has_a_column_a_model_and_one_for_its_difference():
    base = [answer(f"r{index}", False) for index in range(8)]
    tuned = [answer(f"r{index}", index < 7) for index in range(8)]
    figures = figures_of({"base": base, "tuned": tuned}, "base")
    document = {"sides": ["base", "tuned"], "reference": "base", "figures": [figure.to_dict() for figure in figures]}
    lines = render_document(document).splitlines()
    assert lines[0].split() == ["base", "tuned", "tuned", "-", "base"]
    assert lines[2].split()[3:7] == ["0.0%", "87.5%", "+87.5", "[+62.5,"]
    assert lines[2].endswith("*")
    assert lines[-1].startswith("* the 95 % interval")


def test_why_a_difference_has_no_mark_is_told_where_its_interval_would_give_one():
    def shown(right):
        base = [answer(f"r{index}", False) for index in range(8)]
        tuned = [answer(f"r{index}", index < right) for index in range(8)]
        figures = [figure.to_dict() for figure in figures_of({"base": base, "tuned": tuned}, "base")]
        return render_document({"sides": ["base", "tuned"], "reference": "base", "figures": figures})

    assert "fewer than 6 rows differ" in shown(right=5)
    assert "fewer than 6 rows differ" not in shown(right=7)
    assert "fewer than 6 rows differ" not in shown(right=0)


def test_cells_of_differences():
    difference = {"value": 0.125, "low": -0.01, "high": 0.2, "sure": False}
    assert difference_cell("share", difference) == "+12.5 [-1.0, +20.0]"
    assert difference_cell("nats", difference) == "+0.125 [-0.010, +0.200]"
    assert difference_cell("nats", None) == ""
