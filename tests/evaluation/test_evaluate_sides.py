"""Several models, several sets, several processes: what is asked, what is kept, what is compared."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from evaluated_runs import ORDERS, SCHEMA, adapter_run, tokenise_rows, turns, write_jsonl

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.evaluation import asking
from hf_recipes.evaluation.asking import Share
from hf_recipes.evaluation.kept import read_lines
from hf_recipes.evaluation.prepared import Choices, Loaders, load_causal_lm, load_peft_adapter
from hf_recipes.evaluation.run import ask_share, evaluate_with
from hf_recipes.evaluation.table import render_document
from hf_recipes.training.own_code import remember_code

INSTRUCTIONS = {
    "key": 1,
    "prompt": "Say something without a comma.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}
QUESTIONS = [
    {"messages": [{"role": "user", "content": "Capital?"}], "choices": ["Paris", "a pen", "March"], "answer": 0},
    {"prompt": "The quick brown", "choices": [" fox", " candles jump"], "answer": 1},
]
LOADERS = Loaders(tokenise_rows, load_causal_lm, load_peft_adapter)


@pytest.fixture
def settings(tmp_path, monkeypatch) -> dict:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    own = tmp_path / "own.py"
    own.write_text("def score(answer, reference, row):\n    return {'length': len(answer)}\n")
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    remember_code({"function": f"{own}:score"})  # as training by a recipe that names it does
    return {
        "domain": write_jsonl(tmp_path / "d.jsonl", [turns(*order) for order in ORDERS * 2]),
        "scores": ["exact_match", "f1"],
        "function": f"{own}:score",
        "format": {"schema": str(schema)},
        "general": write_jsonl(tmp_path / "g.jsonl", [{"text": text} for text in ("Hello there", "Paris. Yes")]),
        "choices": write_jsonl(tmp_path / "c.jsonl", QUESTIONS),
        "instructions": write_jsonl(tmp_path / "i.jsonl", [INSTRUCTIONS]),
        "max_new_tokens": 4,
        "batch_size": 1,
    }


@pytest.fixture
def run(tmp_path, tiny_model_dir, tokenizer, settings):
    return adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, settings)


def without_times(lines: list[dict]) -> list[dict]:
    times = ("seconds", "first_ms", "token_ms")
    return [{key: value for key, value in line.items() if key not in times} for line in lines]


def side_lines(run, side: str) -> list[dict]:
    return without_times(read_lines(run.path / "evaluation" / f"{side}.jsonl"))


def test_every_set_has_its_figures_and_every_answer_is_kept(run, settings):
    evaluation = evaluate_with(run, tokenise_rows)
    figures = {each["name"]: each for each in evaluation["figures"]}
    expected = ["parses", "format", "format_lenient", "extra_prose", "fields", "exact", "exact_match", "f1", "length"]
    expected += ["instructions", "instructions_lenient", "prompts", "prompts_lenient", "accuracy", "accuracy_norm"]
    expected += ["general_nats", "forgetting", "answer_tokens", "cut", "seconds", "first_token_ms", "ms_per_token"]
    assert list(figures) == expected
    assert figures["format"]["aliases"] == ["fits_schema"]
    assert all(set(figures[name]["values"]) == {"base", "tuned"} for name in expected if name != "forgetting")
    assert set(figures["f1"]["differences"]) == {"tuned"}
    assert figures["seconds"]["differences"] == {}
    assert figures["first_token_ms"]["values"]["tuned"] > 0
    change = evaluation["tuned"]["general"]["nats_per_token"] - evaluation["base"]["general"]["nats_per_token"]
    assert figures["forgetting"]["values"]["tuned"] == pytest.approx(change) == evaluation["change"]["forgetting"]
    lines = read_lines(run.path / "evaluation" / "tuned.jsonl")
    assert [line["part"] for line in lines] == [
        "header", *["domain"] * 4, "instructions", *["choices"] * 2, *["general"] * 2, "latency"
    ]  # fmt: skip
    assert lines[1].keys() >= {"line", "prompt", "answer", "reference", "tokens", "scores", "verdicts", "ended"}
    assert [line["line"] for line in lines[1:5]] == [1, 2, 3, 4]
    shown = render_document(evaluation)
    assert "tuned - base" in shown.splitlines()[0]
    assert "JSON that fits the schema" in shown


@pytest.mark.trials
def test_what_was_answered_is_not_asked_again_and_new_judges_judge_it(run, settings, monkeypatch):
    evaluate_with(run, tokenise_rows)
    before = side_lines(run, "tuned")

    def no_model(*arguments):
        raise AssertionError("a model was loaded")

    settings["scores"] = ["exact_match_squad"]
    run.write(run.run_json, {**run.read(run.run_json), "recipe": {"evaluation": settings}})
    evaluation = evaluate_with(run, tokenise_rows, load_model=no_model)
    assert "exact_match_squad" in {each["name"] for each in evaluation["figures"]}
    after = side_lines(run, "tuned")
    assert [line.get("answer") for line in after] == [line.get("answer") for line in before]
    assert set(after[1]["scores"]) == {"exact_match_squad", "length"}
    with pytest.raises(AssertionError, match="was loaded"):
        evaluate_with(run, tokenise_rows, load_model=no_model, fresh=True)


def test_an_evaluation_cut_short_goes_on_where_it_was(run, monkeypatch):
    whole = evaluate_with(run, tokenise_rows)
    expected = side_lines(run, "tuned")
    shutil.rmtree(run.path / "evaluation")
    append, answered = asking.answer_batches, []

    def killed(model, tokenizer, prompts, **settings):
        for batch in append(model, tokenizer, prompts, **settings):
            if len(answered) == 3:
                raise KeyboardInterrupt
            answered.append(batch)
            yield batch

    monkeypatch.setattr(asking, "answer_batches", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate_with(run, tokenise_rows)
    monkeypatch.setattr(asking, "answer_batches", lambda *a, **k: (answered.append(b) or b for b in append(*a, **k)))
    again = evaluate_with(run, tokenise_rows)
    # two different domain prompts and one of instructions, for two models, one at a time: none was asked twice
    assert len(answered) == 2 * 3
    assert side_lines(run, "tuned") == expected
    assert again["table"][:-3] == whole["table"][:-3]


@pytest.mark.trials
def test_shares_give_together_what_one_process_gives(run):
    whole = evaluate_with(run, tokenise_rows)
    expected = {side: side_lines(run, side) for side in ("base", "tuned")}
    shutil.rmtree(run.path / "evaluation")

    def elsewhere() -> None:
        for rank in range(2):
            ask_share(run, LOADERS, Choices(), Share(rank, 2))
            assert (run.path / "evaluation" / f"tuned.rank{rank}.jsonl").is_file()

    split = evaluate_with(run, tokenise_rows, ask_elsewhere=elsewhere)
    for side, lines in expected.items():
        for got, wanted in zip(side_lines(run, side), lines, strict=True):
            assert got.pop("nats", 0) == pytest.approx(wanted.pop("nats", 0), abs=1e-4)
            assert got.pop("loglikelihoods", []) == pytest.approx(wanted.pop("loglikelihoods", []), abs=1e-4)
            assert got == wanted
    assert [row[0] for row in split["table"]] == [row[0] for row in whole["table"]]
    shutil.rmtree(run.path / "evaluation")
    with pytest.raises(CheckFailed, match="of base were not answered"):
        evaluate_with(run, tokenise_rows, ask_elsewhere=lambda: ask_share(run, LOADERS, Choices(), Share(0, 2)))


def test_a_run_trained_without_evaluation_takes_that_of_a_recipe(tmp_path, tiny_model_dir, tokenizer, capsys):
    from hf_recipes.cli.main import main
    from hf_recipes.core.files import read_json

    run = adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, None)
    write_jsonl(tmp_path / "held_out.jsonl", [turns(*order) for order in ORDERS])
    recipe = tmp_path / "mine.yaml"
    plain = f"model_name_or_path: {tiny_model_dir}\ndatasets: [held_out.jsonl]\n"
    recipe.write_text(plain)
    assert main(["evaluate", str(run.path), "--config", str(recipe)]) == 2
    assert "recipe 'mine' has no evaluation: write e.g." in capsys.readouterr().err
    recipe.write_text(plain + "evaluation: {domain: held_out.jsonl, scores: [exact_match], max_new_tokens: 4}\n")
    assert main(["evaluate", str(run.path), "--config", str(recipe)]) == 0
    told = capsys.readouterr()
    assert "exact match" in told.out and "stands in" in told.err
    assert read_json(run.run_json)["recipe"]["evaluation"]["domain"] == str(tmp_path / "held_out.jsonl")
    assert main(["evaluate", str(run.path)]) == 0  # from now on without it
    assert "in place of" not in capsys.readouterr().err


@pytest.mark.trials
def test_two_processes_answer_as_one(tmp_path, tiny_model_dir, tokenizer, settings):
    """Really two, started by the command's own function."""
    from hf_recipes.training.evaluate import evaluate_run

    rows = [turns("What is the capital of France?", "Paris."), turns("Hello!", "Hello! How can I help you today?")]
    write_jsonl(Path(settings["general"]), rows)
    run = adapter_run(tmp_path / "two", tiny_model_dir, tokenizer, settings)
    one = evaluate_run(run)
    expected = side_lines(run, "tuned")
    two = evaluate_run(run, num_processes=2, fresh=True)
    for got, wanted in zip(side_lines(run, "tuned"), expected, strict=True):
        assert (got.get("answer"), got.get("scores")) == (wanted.get("answer"), wanted.get("scores"))
    assert two["change"]["forgetting"] == pytest.approx(one["change"]["forgetting"], abs=1e-4)


@pytest.mark.trials
def test_other_models_stand_beside_and_the_first_named_is_the_reference(tmp_path, run, tiny_model_dir, tokenizer):
    from transformers import AutoModelForCausalLM

    merged = run.merged("bf16")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    model.save_pretrained(merged)
    other = adapter_run(tmp_path / "other", tiny_model_dir, tokenizer, None)
    evaluation = evaluate_with(run, tokenise_rows)
    assert list(evaluation["sides"]) == ["base", "tuned", "merged-bf16"]
    assert evaluation["rows"][0]["merged-bf16"]["answer"] == evaluation["rows"][0]["base"]["answer"]  # only sharper
    against = (f"twin={other.path}", "merged")
    evaluation = evaluate_with(run, tokenise_rows, choices=Choices(against=against))
    assert (list(evaluation["sides"]), evaluation["reference"]) == (["twin", "tuned", "merged-bf16"], "twin")
    assert "base" not in evaluation
    assert evaluation["rows"][0]["twin"]["answer"] == evaluation["rows"][0]["tuned"]["answer"]  # the same noise
    values = next(each for each in evaluation["figures"] if each["name"] == "general_nats")["values"]
    assert values["twin"] == pytest.approx(values["tuned"], abs=1e-6)
    assert values["merged-bf16"] != pytest.approx(values["tuned"], abs=1e-3)


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("merged", "holds no merged model"),
        ("bsae", "no model of that name or path (did you mean 'base'?)"),
        ("tuned=base", "the name 'tuned' is taken"),
        ("a b=x/y", "'a b' is no name for a column"),
    ],
)
def test_wrong_models_are_one_sentence(run, against, message):
    with pytest.raises(UserError) as error:
        evaluate_with(run, tokenise_rows, choices=Choices(against=(against,)))
    assert message in str(error.value)


def test_a_gate_of_wrong_names_is_told_before_a_model_is_loaded(run, settings):
    from hf_recipes.evaluation.gate import parse_gate

    del settings["function"]
    run.write(run.run_json, {**run.read(run.run_json), "recipe": {"evaluation": settings}})
    with pytest.raises(UserError, match="did you mean 'format'"):
        evaluate_with(run, tokenise_rows, load_model=None, choices=Choices(gate=parse_gate("fromat>1")))
    assert not (run.path / "evaluation").exists()


def test_the_verb_judges_the_gate(run, settings, capsys, monkeypatch):
    import argparse

    import hf_recipes.cli.evaluate as verb
    import hf_recipes.training.evaluate as composed

    monkeypatch.setattr(composed, "tokenise_rows", tokenise_rows)

    def call(*flags: str) -> int:
        parser = argparse.ArgumentParser()
        verb.add_arguments(parser)
        return verb.run(parser.parse_args([str(run.path), *flags]))

    assert call("--gate", "cut>=base,general_nats<100") == 0
    with pytest.raises(CheckFailed, match=r"the gate is not passed; missed: exact of tuned is 0, wanted > 0.5"):
        call("--gate", "exact>0.5,cut>=0")
    assert "gate: met: cut of tuned is" in capsys.readouterr().out
    sheet = run.path / "sheet.html"
    assert call("--rating-sheet", str(sheet)) == 0
    assert "candles for Anna" in sheet.read_text()
    assert sheet.with_suffix(".key.json").is_file()


def test_a_model_that_this_cpu_would_compute_wrongly_is_read_rightly_and_told(tiny_model_dir, monkeypatch, caplog):
    monkeypatch.setattr("hf_recipes.core.four_bits.misread_layers", lambda model: Counter({96: 3}))
    load_causal_lm(str(tiny_model_dir), None, "float32")
    assert "bitsandbytes computes 3 layers of this model wrongly in 4 bits on this CPU" in caplog.text
    assert "are computed in float32, same values" in caplog.text
