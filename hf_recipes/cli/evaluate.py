"""`hf-recipes evaluate`: a run's models side by side on domain, format and general text."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.cli.flags import positive
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import json_safe
from hf_recipes.core.log import logger
from hf_recipes.core.printable import printable
from hf_recipes.core.run_directory import RunDirectory, find_run

if TYPE_CHECKING:
    from hf_recipes.evaluation.gate import Condition

HELP = """Compare a run's models on the held-out rows, format and general text of the recipe's 'evaluation'.

Answers are kept in RUN_DIR/evaluation/, and what was answered before is not asked again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options; `add_help` and the program's name are the caller's."""
    parser.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="a finished run (default: here, else the newest)")
    parser.add_argument(
        "--config", metavar="RECIPE", help="take the 'evaluation' of this recipe: for a run that was trained without"
    )
    parser.add_argument(
        "--against",
        action="append",
        metavar="MODEL",
        help="base, merged, NAME=PATH or a path (a run, an adapter, a model, a Hub name); again for more "
        "(default: base and all that was merged)",
    )
    parser.add_argument(
        "--gate", metavar="LIST", help="conditions, in quotes: 'format>0.95,forgetting<0.1,exact>=base'; 1 if one fails"
    )
    parser.add_argument("--samples", type=positive, metavar="N", help="rows of each set (default: the recipe's, or 64)")
    parser.add_argument(
        "--max-new-tokens", type=positive, metavar="N", help="limit of an answer (default: the recipe's, or 48)"
    )
    parser.add_argument(
        "--num_processes", type=positive, default=1, metavar="N", help="processes that share the rows (default: 1)"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the Python function that the run names, though no recipe trained on this machine named it",
    )
    parser.add_argument("--fresh", action="store_true", help="answer everything anew")
    parser.add_argument("--rating-sheet", type=Path, metavar="FILE", help="write a page on which people judge answers")
    parser.add_argument(
        "--ratings", type=Path, nargs="+", metavar="FILE", help="read what people judged, and how far they agree"
    )
    parser.add_argument("--json", action="store_true", help="print evaluation.json instead of the table")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the table (or JSON) on stdout, and return 0; 1 where the gate is missed."""
    directory = find_run(args.run_dir)
    if args.run_dir is None:
        logger.info("Run: %s", directory.path)
    if args.ratings:
        _refuse_more_than_ratings(args)
        return _ratings(directory, args)
    from hf_recipes.evaluation.gate import parse_gate

    gate = parse_gate(args.gate) if args.gate is not None else ()  # before the imports, which take seconds
    if args.rating_sheet:
        from hf_recipes.evaluation.sheet import check_sheet

        check_sheet(directory, args.rating_sheet)
    with contextlib.redirect_stdout(sys.stderr):  # what a function of the user's prints must not end in the JSON
        evaluation = _evaluate(directory, args, gate)
    if args.json:
        print(json.dumps(json_safe(evaluation), ensure_ascii=False, indent=2))
    else:
        _print(directory, evaluation)
    if args.rating_sheet:
        from hf_recipes.evaluation.sheet import write_sheet_of_run

        logger.info(write_sheet_of_run(directory, args.rating_sheet))
    missed = [each["sentence"] for each in evaluation.get("gate", ()) if not each["holds"]]
    if missed:
        raise CheckFailed("the gate is not passed; " + "; ".join(missed))
    return 0


def _evaluate(directory: RunDirectory, args: argparse.Namespace, gate: tuple[Condition, ...]) -> dict[str, Any]:
    from hf_recipes.training.evaluate import evaluate_run

    return evaluate_run(
        directory,
        samples=args.samples,
        max_new_tokens=args.max_new_tokens,
        against=args.against,
        gate=gate,
        num_processes=args.num_processes,
        fresh=args.fresh,
        allow_code=args.allow_code,
        config=args.config,
    )


def _print(directory: RunDirectory, evaluation: dict[str, Any]) -> None:
    from hf_recipes.evaluation.table import render_document

    print(printable(render_document(evaluation)))
    for each in evaluation.get("gate", ()):
        print(printable(f"gate: {each['sentence']}"))
    print(f"\nAnswers, row by row: {directory.path / 'evaluation'}/")


def _ratings(directory: RunDirectory, args: argparse.Namespace) -> int:
    from hf_recipes.evaluation.sheet import read_ratings_of_run

    print(read_ratings_of_run(directory, args.ratings, as_json=args.json))
    return 0


def _refuse_more_than_ratings(args: argparse.Namespace) -> None:
    others = ("config", "against", "gate", "samples", "max_new_tokens", "fresh", "rating_sheet")
    if given := [name for name in others if getattr(args, name)]:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UserError(f"--ratings reads what people judged and evaluates nothing: leave out {flags}.")
