"""`hf-recipes quickstart`: the whole way, end to end, on a real small model."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_recipes.quickstart.run import QuickstartResult

HELP = """Fine-tune SmolLM2-135M-Instruct to turn free-text orders into JSON, by the command you would type yourself.
Before that look at the machine and test the set-up; then verify, look at the run, evaluate base against tuned, merge,
and write the report and a sheet for people to rate answers on. Minutes on two CPU cores; no GPU, no Hub needed.

Any recipe key of smollm2/sft_lora can be given as --key value.
"""
TAKES_RECIPE_KEYS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--output_dir``, ``--json``."""
    parser.add_argument("--output_dir", metavar="DIR", help="the run directory (default: runs/quickstart-TIME)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Run, print the table and what to do next; below the thresholds the exit code is 1."""
    from hf_recipes.core.errors import UserError
    from hf_recipes.core.files import json_safe
    from hf_recipes.core.run_directory import is_run
    from hf_recipes.quickstart.run import check_thresholds, quickstart

    output = Path(options.output_dir or f"runs/quickstart-{time.strftime('%Y%m%d-%H%M%S')}")
    if is_run(output) or output.is_file():
        raise UserError(f"--output_dir: '{output}' already holds a run: name another directory.")
    result = quickstart(output, options.recipe_keys)
    if options.json:
        facts = {
            "run": result.run.path,
            "base_source": result.base_source,
            "diagnosis": result.diagnosis,
            "table": result.evaluation["table"],
            "tuned": result.evaluation["tuned"],
            "change": result.evaluation["change"],
            "seconds": result.seconds,
        }
        print(json.dumps(json_safe(facts), ensure_ascii=False, indent=2))
    else:
        print(_summary(result))
    check_thresholds(result.evaluation)
    return 0


def _summary(result: QuickstartResult) -> str:
    from hf_recipes.evaluation.table import render_document

    run = result.run
    seconds = ", ".join(f"{stage} {value:.0f} s" for stage, value in result.seconds.items())
    return f"""
{render_document(result.evaluation)}

Base model    {result.base_source}
Adapter       {run.adapter}
Merged model  {run.merged("bf16")}
Report        {run.path / "report.html"}
To rate       {run.path / "rating.html"} (blind, by people)
Time          {sum(result.seconds.values()):.0f} s ({seconds})

Next:
  hf-recipes inspect --config smollm2/sft_lora             # what was trained on, as text
  hf-recipes cp smollm2/sft_lora my.yaml                   # your own recipe: model_name_or_path, datasets, evaluation
  hf-recipes sft --config my.yaml                          # train it
  hf-recipes sweep --config my.yaml --lr 1e-3,2e-3,4e-3    # which learning rate"""
