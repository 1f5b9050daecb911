"""What users write wrongly, and what must not be lost or mixed up by it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from evaluated_runs import make_run, turns, write_jsonl

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.core.generation import Answer
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation import asking
from hf_recipes.evaluation.gate import check_gate, check_names, parse_gate
from hf_recipes.evaluation.judges.custom import load_score
from hf_recipes.evaluation.judging import Judges, check_suite
from hf_recipes.evaluation.kept import KeptAnswers
from hf_recipes.evaluation.rows import read_domain_rows
from hf_recipes.evaluation.sides import find_sides
from hf_recipes.evaluation.suite import EvaluationSuite
from hf_recipes.evaluation.table import WIDTH, columns, render_document


def finished_run(tmp_path: Path) -> RunDirectory:
    run = make_run(tmp_path / "run", tmp_path, {})
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    return run


def judged(tmp_path: Path, body: str) -> dict:
    """What the judges of a recipe with this function say of an answer."""
    file = tmp_path / "own.py"
    file.write_text(f"import sys\n\ndef score(answer, reference, row):\n    {body}\n")
    domain = write_jsonl(tmp_path / "d.jsonl", [turns("q", "a")])
    judges = Judges.of(EvaluationSuite.from_dict({"domain": domain, "function": f"{file}:score"}))
    return judges.domain("a", read_domain_rows(SourceSpec(str(domain)))[0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(0)", "own.py:score on row 1 failed at line 4 with SystemExit: 0. Correct"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines. Correct"),
        ("raise ValueError('long ' * 900)", "Correct the function."),
        ("return {'format': 1}", "returns 'format', which a figure of the evaluation is named"),
        ("return {'bleu': 1}", "returns 'bleu', which a figure"),
        ("return {'general_loss': 1}", "returns 'general_loss', which a figure"),
        ("return {'a<b': 1}", "a name has none of"),
        ("return {'a\\nb': 1}", "a name has none of"),
        ("return {'': 1}", "a name has none of"),
        ("return {'a': [1] * 900}", "not a finite number"),
        ("return 10 ** 400", "not a finite number"),
        ("return {}", "returned no score"),
        ("return float('nan')", "not a finite number"),
    ],
)
def test_a_function_that_fails_or_returns_nonsense_is_one_short_sentence(tmp_path, body, message):
    with pytest.raises(UserError) as error:
        judged(tmp_path, body)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500 + len(str(tmp_path))


def test_a_file_that_exits_when_it_is_loaded_ends_nothing(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match="cannot be loaded at line 2: SystemExit: 0"):
        load_score(f"{file}:score")


def test_a_score_named_in_words_can_be_gated(tmp_path):
    assert judged(tmp_path, "return {'names the customer': True}")["scores"] == {"names the customer": 1.0}
    figures = {"names the customer": {"base": 0.2, "tuned": 0.9}}
    conditions = parse_gate("names the customer >= 80%, base:names the customer<tuned")
    check_names(conditions, figures, ["base", "tuned"])
    assert [outcome.holds for outcome in check_gate(conditions, figures, "tuned")] == [True, True]


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("x=", "no model of that name or path"),
        ("x=/no/where/at/all", "'/no/where/at/all' does not exist"),
        ("x=./gone", "'./gone' does not exist"),
        ("=y", "'' is no name for a column"),
        ("{broken}", "adapter_config.json does not say which base"),
        ("{listed}", "adapter_config.json does not say which base"),
        ("{empty}", "holds no finished result"),
    ],
)
def test_models_that_are_not_there_are_told_by_path(tmp_path, against, message):
    run = finished_run(tmp_path)
    places = {name: tmp_path / name for name in ("broken", "listed", "empty")}
    for name, text in (("broken", "{"), ("listed", "[]")):
        places[name].mkdir()
        (places[name] / "adapter_config.json").write_text(text)
    make_run(places["empty"], tmp_path, {})
    with pytest.raises(UserError) as error:
        find_sides(run, run.read(run.run_json), [against.format(**places)])
    assert message in str(error.value)


def test_the_base_may_have_another_name(tmp_path):
    run = finished_run(tmp_path)
    sides = find_sides(run, run.read(run.run_json), ["before=base"])
    assert [(side.name, side.model) for side in sides] == [
        ("before", str(tmp_path)),
        ("tuned", str(run.model)),
    ]


def test_a_run_without_its_base_is_told(tmp_path):
    run = finished_run(tmp_path)
    with pytest.raises(UserError, match="names no base_model"):
        find_sides(run, {"base_model": "x"}, ["base"])
    for text in ("[]", "null", '{"recipe": []}'):
        run.run_json.write_text(text)
        assert main(["evaluate", str(run.path)]) == 2


@pytest.mark.parametrize("settings", ["domain.jsonl", ["domain"], 3])
def test_an_evaluation_that_is_no_mapping_is_told(settings):
    with pytest.raises(UserError, match="is not a mapping"):
        EvaluationSuite.from_dict(settings)


@pytest.mark.parametrize(
    ("key", "row", "message"),
    [
        ("choices", {"prompt": "p", "choices": ["a"], "answer": 0}, "line 1 needs 'choices'"),
        ("instructions", {"prompt": "p", "instruction_id_list": ["no:such"], "kwargs": [{}]}, "line 1"),
        ("instructions", {"prompt": "p", "instruction_id_list": [["x"]], "kwargs": [{}]}, "is no instruction"),
        (
            "instructions",
            {"prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [5]},
            "the 'kwargs' of punctuation:no_comma are 5",
        ),
        (
            "instructions",
            {"prompt": "p", "instruction_id_list": ["startend:end_checker"], "kwargs": [{"end_phrase": ""}]},
            "end_phrase is empty",
        ),
        ("choices", {"prompt": "\ud800", "choices": ["a", "b"], "answer": 0}, "line 1 has half a surrogate pair"),
        ("format", {"schema": {"$dynamicRef": "#gone"}}, "refers to '#gone'"),
        ("rating", {"samples": 0}, "samples: 0 is not a positive"),
        ("rating", {"criteria": ["a", "a "]}, "one criterion twice"),
        ("gate", "fromat>1", "did you mean 'format'"),
        ("tasks", "gone.yaml", "does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_told_before_the_training(tmp_path, key, row, message):
    value = row if isinstance(row, str) or key in ("format", "rating") else write_jsonl(tmp_path / "rows.jsonl", [row])
    domain = write_jsonl(tmp_path / "d.jsonl", [turns("q", "a")])
    with pytest.raises(UserError) as error:
        check_suite(EvaluationSuite.from_dict({"domain": domain, key: value}))
    assert message in str(error.value)


def test_the_check_before_the_training_runs_no_code(tmp_path):
    (tmp_path / "own.py").write_text("raise SystemError\n")
    domain = write_jsonl(tmp_path / "d.jsonl", [turns("q", "a")])
    check_suite(EvaluationSuite.from_dict({"domain": domain, "function": f"{tmp_path / 'own.py'}:score"}))


def test_a_line_that_somebody_cut_is_asked_anew(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hf_recipes"), "propagate", True)
    kept = KeptAnswers(tmp_path / "tuned.jsonl", {"models": {}, "asked": {}})
    kept.append([{"part": "general", "key": "a", "nats": 1.0, "tokens": 2}, {"part": "general", "key": "b"}])
    assert set(kept.read()) == {"a"}
    assert "1 line(s) are no whole answers" in caplog.text


def shown(sides: list[str]) -> dict:
    names = ["loss on general text", "  the same, in or out of prose (lenient)"]
    difference = {"value": 0.969, "low": 0.922, "high": 1.0, "sure": True}
    figure = {
        "unit": "share",
        "values": dict.fromkeys(sides, 0.5),
        "differences": dict.fromkeys(sides[1:], difference),
    }
    figures = [{"name": f"f{index}", "label": name, **figure} for index, name in enumerate(names)]
    return {"sides": {side: {} for side in sides}, "reference": sides[0], "figures": figures}


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_table_fits_a_terminal_and_loses_nothing(count):
    document = shown(["base", "tuned", "merged-bf16", "a-model-of-a-rather-long-name", *"xyz"][:count])
    text = render_document(document)
    assert max(map(len, text.splitlines())) <= WIDTH == 100
    heads, rows = columns(document)
    assert all(head in text for head in heads)
    cells = [cell for row in rows for cell in row[1:]]
    assert text.count("50.0%") == cells.count("50.0%") == 2 * count
    assert text.count("+96.9 [+92.2, +100.0] *") == 2 * (count - 1)


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_evaluation_of_one_run_is_refused(tmp_path, capsys):
    """With other settings it would take the first one's answers for its own."""
    run = make_run(tmp_path / "run", tmp_path, {"domain": write_jsonl(tmp_path / "d.jsonl", [turns("q", "a")])})
    (run.path / "evaluation").mkdir()
    lock = run.path / "evaluation" / ".writer.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        try:
            assert main(["evaluate", str(run.path)]) == 2
        finally:
            other.kill()
    assert "Another evaluation of" in capsys.readouterr().err
    assert main(["evaluate", str(run.path)]) == 2
    assert "holds no finished result" in capsys.readouterr().err
    assert not lock.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gate", "a<b<c"], "not of the form"),
        (["--gate", "forgetting<"], "not of the form"),
        (["--gate", ""], "gate is empty"),
        (["--samples", "0"], "not a positive whole number"),
        (["--samples", "²"], "--samples"),
        (["--rating-sheet", "s.html"], "judge answers to evaluation.domain"),
        (["--ratings", "a.csv", "--gate", "x>1", "--fresh"], "leave out --gate, --fresh"),
        (["--ratings", "gone.csv"], "'gone.csv' is no file"),
        (["--ratings", "g.jsonl"], ".key.json is neither"),
    ],
)
def test_flags_that_cannot_be_right_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "g.jsonl", [turns("q", "a")])
    run = make_run(tmp_path / "run", tmp_path, {"general": "g.jsonl"})
    assert main(["evaluate", str(run.path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


def test_a_sheet_s_path_that_is_a_directory_is_told_before_models_answer(tmp_path, capsys):
    run = make_run(tmp_path / "run", tmp_path, {"domain": write_jsonl(tmp_path / "d.jsonl", [turns("q", "a")])})
    assert main(["evaluate", str(run.path), "--rating-sheet", str(tmp_path)]) == 2
    assert "is a directory: name the page" in capsys.readouterr().err


def test_ratings_are_read_with_the_key_of_their_sheet(tmp_path, capsys):
    """Of several sheets of a run, the one that the file names; what is wrong in the file is told, not another sheet."""
    from hf_recipes.evaluation.rating.items import RatingItem
    from hf_recipes.evaluation.rating.sheet import write_rating_sheet

    run = RunDirectory(make_run(tmp_path / "run", tmp_path, {}).path)
    written = []
    for count in (2, 3):
        items = [RatingItem(number, "p", "", {"base": "x", "tuned": "y"}, "s") for number in range(count)]
        written.append(write_rating_sheet(tmp_path / f"s{count}.html", items, ["fluency"], samples=9, seed=0))
    keys = [str(each.key) for each in written]
    (run.path / "evaluation").mkdir()
    (run.path / "evaluation" / "rating_keys.json").write_text(json.dumps(keys))
    sheet = json.loads(Path(keys[0]).read_text())["sheet"]
    head = "sheet,rater,item,A: fluency,B: fluency,preference,note\n"
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(f"{head}{sheet},ann,0,1,5,A,\n")
    bad.write_text(f"{head}{sheet},ben,0,9,5,A,\n")
    assert main(["evaluate", str(run.path), "--ratings", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 2
    assert main(["evaluate", str(run.path), "--ratings", str(bad)]) == 2
    assert "bad.csv, row 2" in capsys.readouterr().err
    assert main(["evaluate", str(run.path), "--ratings", str(good), str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_answers_outlive_a_function_that_fails_on_them(tmp_path, monkeypatch):
    file = tmp_path / "own.py"
    file.write_text("def score(answer, reference, row):\n    return 1 / len(answer)\n")
    domain = write_jsonl(tmp_path / "d.jsonl", [turns("q", "a"), turns("r", "b")])
    suite = EvaluationSuite.from_dict({"domain": domain, "function": f"{file}:score"})
    batch = {index: Answer(text=text, tokens=1, ended=True, seconds=0.1) for index, text in enumerate(("a", ""))}
    monkeypatch.setattr(asking, "answer_batches", lambda *arguments, **settings: iter([batch]))
    monkeypatch.setattr(asking, "render_prompt", lambda tokenizer, messages, tools: [1])
    written: list[dict] = []
    with pytest.raises(UserError, match="on row 2 failed at line 2 with ZeroDivisionError"):
        asking.ask(None, None, Judges.of(suite), asking.Questions(domain=suite.rows()), [], written.extend)
    assert [line["answer"] for line in written] == ["a", ""]
