"""The base model's answers go from one evaluated trial to the next."""

from __future__ import annotations

from hf_recipes.sweep.base_answers import lend_base_answers


def test_answers_are_lent_to_a_run_that_has_none(tmp_path):
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for run in runs:
        run.mkdir()
    assert lend_base_answers(runs[0], runs) is None and list(runs[0].iterdir()) == []
    (runs[1] / "evaluation").mkdir()
    answers = runs[1] / "evaluation/base.jsonl"
    answers.write_text("answers")
    assert lend_base_answers(runs[2], runs) == answers
    assert [path.name for path in (runs[2] / "evaluation").iterdir()] == ["base.jsonl"]
    assert (runs[2] / "evaluation/base.jsonl").read_text() == "answers"


def test_its_own_answers_stay(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "evaluation").mkdir(parents=True)
        (tmp_path / name / "evaluation/base.jsonl").write_text(name)
    assert lend_base_answers(tmp_path / "a", [tmp_path / "b"]) is None
    assert (tmp_path / "a/evaluation/base.jsonl").read_text() == "a"
