"""`hf-recipes evaluate`: base against tuned on domain, format and general text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.files import json_safe
from hf_recipes.core.run_directory import find_run

if TYPE_CHECKING:
    from hf_recipes.evaluation.general import TokenisedRow

_MAX_GENERAL_TOKENS = 2048  # longer general rows are dropped and counted: their loss costs more than it tells

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

    from hf_recipes.evaluation.compare import render
    from hf_recipes.evaluation.run import evaluate_run

    evaluation = evaluate_run(
        directory,
        tokenise_general_rows,
        samples=args.samples,
        max_new_tokens=args.max_new_tokens,
        load_model=load_model,
    )
    if args.json:
        print(json.dumps(json_safe(evaluation), ensure_ascii=False, indent=2))
    else:
        print(render(evaluation["table"]))
        print(f"\nAnswers, row by row: {directory.evaluation_json}")
    return 0


def tokenise_general_rows(path: Path, tokenizer: Any) -> list[TokenisedRow]:
    """Rows of any known format, masked as in training: answers with their end of turn. What is dropped is told."""
    from hf_recipes.data.prepare import prepare_data

    sources = [{"path": str(path)}]
    rows = prepare_data(sources, tokenizer, max_length=_MAX_GENERAL_TOKENS, eval_share=0, general_share=0).train
    return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows]


def load_model(name_or_path: str, revision: str | None, dtype: str) -> Any:
    """A causal LM from a directory, a GGUF file or the Hub, found as for training."""
    from hf_recipes.models.base import load_base
    from hf_recipes.models.source import find_model

    return load_base(find_model(name_or_path, revision), dtype=dtype)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value
