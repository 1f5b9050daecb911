"""The recipe's evaluation during the training: small eval sets by name, beside the data's own."""

from __future__ import annotations

import json

import pytest
from tiny_runs import tiny_arguments, tiny_rows

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.prepare import prepare_data
from hf_recipes.training.eval_parts import evaluate_in_parts
from hf_recipes.training.suite_rows import eval_sets, format_judge, recipe_suite, suite_parts, tell_trained_rows
from hf_recipes.training.trainer import SupervisedTrainer

ANSWER = {"role": "assistant", "content": '{"item": "pens"}'}


def make_recipe(tmp_path, **more) -> dict:
    files = {}
    for name, count in (("domain", 6), ("general", 2)):
        path = tmp_path / f"{name}.jsonl"
        questions = [{"role": "user", "content": f"{name} {number} pens"} for number in range(count)]
        rows = [{"messages": [question, ANSWER]} for question in questions]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[name] = str(path)
    return {"evaluation": {**files, "during_training": 3, **more}}


def test_rows_are_masked_as_those_trained_on(tmp_path, tokenizer):
    recipe = make_recipe(tmp_path)
    parts = suite_parts(recipe_suite(recipe), tokenizer, recipe)
    assert {name: len(rows) for name, rows in parts.items()} == {"suite_domain": 3, "suite_general": 2}
    row = parts["suite_domain"][0]
    trained = [token for token in row["labels"] if token != -100]
    assert tokenizer.decode(trained).strip() == '{"item": "pens"}<|im_end|>'
    assert suite_parts(recipe_suite(make_recipe(tmp_path, during_training=0)), tokenizer, recipe) == {}
    assert suite_parts(None, tokenizer, {}) == {}


def test_rows_that_are_trained_on_too_are_told(tmp_path, tokenizer, caplog):
    recipe = make_recipe(tmp_path)
    suite = recipe_suite(recipe)
    rows = [json.loads(line) for line in (tmp_path / "domain.jsonl").read_text().splitlines()]
    trained = [{"prompt": row["messages"][0]["content"] + " ", "completion": "another"} for row in rows[2:4]]
    for name, added in (("other", []), ("same", trained)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([*added, {"prompt": "Something else?", "completion": "Yes."}]))
        tell_trained_rows(suite, prepare_data([{"path": str(path)}], tokenizer, eval_share=0))
        assert caplog.text.count("are trained on too") == bool(added)
    assert "2 of 6 prompts are trained on too (first: row 3 of" in caplog.text


def test_what_could_not_be_evaluated_is_told_before_the_training(tmp_path):
    assert recipe_suite({}) is None
    with pytest.raises(UserError, match=r"evaluation\.general: the file '/nowhere' does not exist"):
        recipe_suite(make_recipe(tmp_path, general="/nowhere"))
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "completion": ""}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl, line 1: an assistant turn is empty"):
        recipe_suite(make_recipe(tmp_path, domain=str(tmp_path / "bad.jsonl")))
    with pytest.raises(UserError, match="is no format"):
        recipe_suite(make_recipe(tmp_path, format={"jsn": True}))


def test_sample_answers_are_judged_by_the_suite_s_format(tmp_path):
    judge = format_judge(recipe_suite(make_recipe(tmp_path, format={"json": True})))
    assert judge('{"other": 1}', '{"item": "pens"}') == (True, "")  # keys are the schema's business, where there is one
    assert judge("Sure: {}", None)[0] is False
    assert judge("", None) == (False, "empty")
    plain = format_judge(None)
    assert plain('{"other": 1}', '{"item": "pens"}')[0] is False


def test_the_suite_s_losses_are_logged_apart_and_eval_loss_stays_the_data_s(tmp_path, tiny_model, tokenizer):
    own, suite = tiny_rows(100, 4), {"suite_domain": tiny_rows(50, 3), "suite_general": tiny_rows(20, 2)}
    assert eval_sets(own, {}) is own
    sets = eval_sets(own, suite)
    trainer = SupervisedTrainer(
        model=tiny_model,
        args=tiny_arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1),
        data_collator=SupervisedCollator(pad_token_id=2),
        train_dataset=tiny_rows(100),
        eval_dataset=sets,
        processing_class=tokenizer,
    )
    evaluate_in_parts(trainer)
    trainer.train()
    logs = trainer.state.log_history
    names = ("eval_held_out_loss", "eval_suite_domain_loss", "eval_suite_general_loss", "eval_loss")
    found = {name: [log[name] for log in logs if name in log] for name in names}
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(names, 2)
    assert found["eval_loss"] == found["eval_held_out_loss"]
    assert found["eval_suite_domain_loss"] != found["eval_loss"]
