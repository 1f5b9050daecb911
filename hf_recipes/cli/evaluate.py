"""`hf-recipes evaluate`: base against tuned on domain, format and general text."""

from __future__ import annotations

import argparse
import json

from hf_recipes.core.files import json_safe
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import find_run

HELP = "compare base and tuned model on the held-out rows, format and general text of the recipe's 'evaluation'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options; `add_help` and the program's name are the caller's."""
    parser.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="a finished run (default: here, else the newest)")
    parser.add_argument(
        "--samples", type=_positive, metavar="N", help="rows of each set (default: the recipe's, or 64)"
    )
    parser.add_argument(
        "--max-new-tokens", type=_positive, metavar="N", help="limit of an answer (default: the recipe's, or 48)"
    )
    parser.add_argument("--json", action="store_true", help="print evaluation.json instead of the table")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the table (or JSON) on stdout, and return 0."""
    directory = find_run(args.run_dir)
    if args.run_dir is None:
        logger.info("Run: %s", directory.path)

    from hf_recipes.evaluation.compare import render
    from hf_recipes.training.evaluate import evaluate_run

    evaluation = evaluate_run(directory, samples=args.samples, max_new_tokens=args.max_new_tokens)
    if args.json:
        print(json.dumps(json_safe(evaluation), ensure_ascii=False, indent=2))
    else:
        print(render(evaluation["table"]))
        print(f"\nAnswers, row by row: {directory.evaluation_json}")
    return 0


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value
