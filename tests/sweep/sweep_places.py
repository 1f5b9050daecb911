"""A place to sweep in: a recipe on a tiny model, and trials in this process where no process of their own is needed."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

RECIPE = """
model_name_or_path: MODEL
datasets: [{path: rows.jsonl}]
learning_rate: 1e-2
per_device_train_batch_size: 2
max_steps: 4
eval_steps: 0.5
logging_steps: 1
save_steps: 1000
trial_save: false
verify_checkpoints: "off"
overfit_check: "off"
disable_tqdm: true
watch: {live_report: false}
"""


def make_place(model: Path, place: Path, **more: object) -> None:
    """Write recipe.yaml and rows.jsonl."""
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items())
    kept = [line for line in RECIPE.splitlines() if line.partition(":")[0] not in more]
    (place / "recipe.yaml").write_text("\n".join(kept).replace("MODEL", str(model)) + "\n" + lines)
    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(40)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def trial_here(arguments, log, listener, look):
    """As `run_child` for `sft`, in this process: a trial without the seconds that processes take to import torch."""
    from hf_recipes.core.errors import CheckFailed, UserError
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.run import train

    verb, config, recipe, *keys = arguments
    assert (verb, config) == ("sft", "--config"), arguments
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            train(load_recipe(recipe, keys))
        except (CheckFailed, UserError) as error:
            print(f"hf-recipes: {error}", file=sys.stderr)
            return error.exit_code
    return 0
