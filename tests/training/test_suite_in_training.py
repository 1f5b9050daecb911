"""A whole run with `evaluation.during_training`: its parts are evaluated by name, beside the data's own eval rows."""

from __future__ import annotations

import json

from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: base
datasets: [rows.jsonl]
eval_share: 0.2
overfit_check: off
per_device_train_batch_size: 4
max_steps: 2
logging_steps: 1
eval_strategy: steps
eval_steps: 1
save_strategy: no
verify_checkpoints: off
disable_tqdm: true
watch: {live_report: false}
evaluation: {domain: heldout.jsonl, general: general.jsonl, during_training: 3}
"""


def _chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_the_suites_parts_are_logged_at_each_evaluation(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").symlink_to(tiny_model_dir)
    for name, count in (("rows", 20), ("heldout", 6), ("general", 5)):
        rows = [{"messages": _chat(f"{name} {i}", f"It is {i}.")} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run = train(load_recipe(str(tmp_path / "recipe.yaml"), []))
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    evaluations = [event for event in events if event["kind"] == "eval"]
    by_step = {step: {key for event in evaluations if event["step"] == step for key in event} for step in (1, 2)}
    for keys in by_step.values():
        assert {"eval_suite_domain_loss", "eval_suite_general_loss", "eval_loss"} <= keys
