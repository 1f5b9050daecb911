from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import pytest
import torch
from evaluated_runs import ORDERS, SCHEMA, adapter_run, make_run, tokenise_rows, turns

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.compare import evaluate_model, render
from hf_recipes.evaluation.prepared import compute_dtype
from hf_recipes.evaluation.run import evaluate_with
from hf_recipes.evaluation.suite import EvaluationSuite


@pytest.fixture
def settings(tmp_path) -> dict:
    domain, schema, general = (tmp_path / name for name in ("d.jsonl", "s.json", "g.jsonl"))
    domain.write_text("".join(json.dumps(turns(*order)) + "\n" for order in ORDERS))
    schema.write_text(json.dumps(SCHEMA))
    general.write_text('{"text": "The capital of France? Paris."}\n{"text": "hello"}\n')
    return {"domain": str(domain), "schema": str(schema), "general": str(general), "max_new_tokens": 4}


def test_an_adapter_run_compares_the_base_with_the_adapter(tmp_path, tiny_model_dir, tokenizer, settings):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, settings)
    evaluation = evaluate_with(run, tokenise_rows)
    suite = EvaluationSuite.from_dict(settings)
    general = tokenise_rows(suite.general, tokenizer)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=compute_dtype())  # bf16 where the CPU has it
    # Each side against a model loaded for itself: an adapter left on, or off, would show here.
    base_scores = evaluate_model(base, tokenizer, suite, general)
    tuned_scores = evaluate_model(PeftModel.from_pretrained(base, run.adapter), tokenizer, suite, general)
    assert evaluation["base"]["general"]["nats_per_token"] == pytest.approx(base_scores.general.nats_per_token, 1e-5)
    assert evaluation["tuned"]["general"]["nats_per_token"] == pytest.approx(tuned_scores.general.nats_per_token, 1e-5)
    assert [row["base"]["answer"] for row in evaluation["rows"]] == base_scores.answers
    assert [row["tuned"]["answer"] for row in evaluation["rows"]] == tuned_scores.answers
    assert base_scores.answers != tuned_scores.answers
    rise = tuned_scores.general.nats_per_token - base_scores.general.nats_per_token
    assert evaluation["change"]["forgetting"] == pytest.approx(rise, abs=1e-4)
    assert abs(rise) > 1e-3


def test_evaluation_json_holds_answers_settings_and_versions(tmp_path, tiny_model_dir, tokenizer, settings):
    run = adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, settings)
    evaluation = evaluate_with(run, tokenise_rows, samples=1, max_new_tokens=2)
    written = read_json(run.evaluation_json)
    assert written["settings"]["samples"] == 1
    assert written["settings"]["max_new_tokens"] == 2
    assert written["settings"]["domain"] == settings["domain"]
    assert written["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    (row,) = written["rows"]
    assert row["reference"] == dict(ORDERS)[row["prompt"][0]["content"]]
    assert row["tuned"]["exact"] is False
    assert written["base"]["domain"]["rows"] == 1
    assert [tuple(line) for line in written["table"]] == evaluation["table"]


@pytest.fixture
def learnt_run(tmp_path, tiny_model_dir, tokenizer, settings) -> RunDirectory:
    """A full fine-tune that knows its two orders by heart: plain AdamW on one padded batch."""
    from transformers import AutoModelForCausalLM

    run = make_run(tmp_path / "run", tiny_model_dir, {**settings, "max_new_tokens": 40})
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).train()
    ids = [tokenizer.apply_chat_template(turns(*order)["messages"], return_dict=True)["input_ids"] for order in ORDERS]
    length = max(map(len, ids))
    inputs = torch.tensor([row + [0] * (length - len(row)) for row in ids])
    labels = torch.tensor([row + [-100] * (length - len(row)) for row in ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(input_ids=inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(run.model)
    tokenizer.save_pretrained(run.model)
    return run


def test_a_tuned_model_that_answers_rightly_scores_full_marks(learnt_run):
    evaluation = evaluate_with(learnt_run, tokenise_rows)
    tuned, base = evaluation["tuned"]["domain"], evaluation["base"]["domain"]
    assert (tuned["parses"], tuned["fits_schema"], tuned["fields_right"], tuned["exact"]) == (1.0, 1.0, 1.0, 1.0)
    assert (base["parses"], base["exact"]) == (0.0, 0.0)
    assert evaluation["tuned"]["cut_answers"] == 0
    assert ["JSON", "that", "fits", "the", "schema", "0.0%", "100.0%"] in [
        line.split() for line in render(evaluation["table"]).splitlines()
    ]
    assert [row[0] for row in evaluation["table"]] == [
        "JSON that parses",
        "JSON that fits the schema",
        "  the same, in or out of prose (lenient)",
        "  prose around it",
        "fields exactly right",
        "all fields right",
        "loss on general text",
        "forgetting (its rise over base)",
        "tokens per answer",
        "answers cut at the limit",
        "seconds per answer",
        "time to first token (ms)",
        "time per token after it (ms)",
    ]


@pytest.mark.trials
def test_the_verb_prints_the_table_or_json(learnt_run, settings, capsys):
    import hf_recipes.cli.evaluate as verb

    Path(settings["general"]).write_text(json.dumps(turns("What is the capital of France?", "Paris.")) + "\n")
    for as_json in (False, True):
        parser = argparse.ArgumentParser()
        verb.add_arguments(parser)
        flags = ["--samples", "1", "--max-new-tokens", "30", *(["--json"] if as_json else [])]
        assert verb.run(parser.parse_args([str(learnt_run.path), *flags])) == 0
        out = capsys.readouterr().out
        if as_json:
            evaluation = json.loads(out)
            assert (evaluation["settings"]["max_new_tokens"], evaluation["tuned"]["domain"]["rows"]) == (30, 1)
            # the template's ChatML: only "Paris.", its end-of-turn token and no part of the question is counted
            assert 2 <= evaluation["tuned"]["general"]["tokens"] <= 8
        else:
            assert "all fields right" in out


@pytest.mark.trials
def test_a_full_fine_tune_loads_base_then_result(tmp_path, tiny_model_dir, tokenizer, settings):
    from transformers import AutoModelForCausalLM

    run = make_run(tmp_path / "run", tiny_model_dir, settings)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(run.model)
    tokenizer.save_pretrained(run.model)
    loaded: list[str] = []

    def load(name, revision, dtype):
        loaded.append(name)
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)

    evaluation = evaluate_with(run, tokenise_rows, load_model=load)
    assert loaded == [str(tiny_model_dir), str(run.model)]
    assert abs(evaluation["change"]["forgetting"]) > 1e-3


@pytest.mark.trials
def test_answers_that_do_not_end_are_told(tmp_path, tiny_model_dir, tokenizer, settings, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hf_recipes"), "propagate", True)
    evaluate_with(adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, settings), tokenise_rows)
    assert "2 of 2 tuned answers met the limit of 4 tokens" in caplog.text


def test_a_recipe_without_evaluation_names_the_key(tmp_path, tiny_model_dir):
    run = make_run(tmp_path / "run", tiny_model_dir, None)
    with pytest.raises(UserError, match=r"has no 'evaluation': write e\.g\. evaluation: \{domain"):
        evaluate_with(run, tokenise_rows)


def test_missing_parts_are_one_sentence_each(tmp_path, tiny_model_dir, tokenizer, settings):
    run = make_run(tmp_path / "none", tiny_model_dir, settings)
    with pytest.raises(UserError, match="holds no finished result"):
        evaluate_with(run, tokenise_rows)
    run = adapter_run(tmp_path / "run", tiny_model_dir, tokenizer, settings)
    with pytest.raises(UserError, match="gives no row to take a loss on"):
        evaluate_with(run, lambda path, tokenizer: [])
    run.write(run.run_json, {**read_json(run.run_json), "base_model": {"name_or_path": str(tmp_path / "gone")}})
    with pytest.raises(UserError, match="cannot be loaded") as error:
        evaluate_with(run, tokenise_rows)
    assert "\n" not in str(error.value)


@pytest.mark.trials
@pytest.mark.real_model
def test_the_real_model_before_and_after_a_random_adapter(tmp_path, smollm2_dir, settings):
    """Four orders on SmolLM2: the base side must be the base's own answer, and its loss on English a sane one."""
    from transformers import AutoTokenizer

    real = AutoTokenizer.from_pretrained(smollm2_dir)
    orders = [(f"{count} candles for Anna.", json.dumps({"item": "candles"})) for count in (2, 3, 4, 5)]
    Path(settings["domain"]).write_text("".join(json.dumps(turns(*order)) + "\n" for order in orders))
    Path(settings["general"]).write_text(json.dumps({"text": "The capital of France is Paris, a city on the Seine."}))
    run = adapter_run(tmp_path / "run", smollm2_dir, real, settings)
    evaluation = evaluate_with(run, tokenise_rows)
    assert evaluation["base"]["domain"]["rows"] == 4
    assert 1.0 < evaluation["base"]["general"]["nats_per_token"] < 4.0
    assert evaluation["change"]["forgetting"] > 1.0  # noise on every linear layer ruins it
    assert all(row["base"]["answer"].strip() for row in evaluation["rows"])
