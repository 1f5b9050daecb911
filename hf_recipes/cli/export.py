"""`hf-recipes export`: a finished run in the forms people use, each loaded back and measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hf_recipes.cli.flags import positive
from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.files import json_safe
from hf_recipes.core.log import logger
from hf_recipes.core.printable import printable
from hf_recipes.core.run_directory import find_run
from hf_recipes.export.forms.names import known_forms, parse_forms

HELP = "write a run's result as adapter, merged model, 4-bit or GGUF; load each back and measure it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="a finished run (default: here, else the newest)")
    parser.add_argument(
        "--forms", required=True, metavar="LIST", help=f"with commas: {known_forms()} (q8_0, q4_k_m, f16 …)"
    )
    parser.add_argument("--output", metavar="DIR", help="where each form gets a directory (default: RUN_DIR/exports)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing forms, once the new ones are whole")
    parser.add_argument("--base", metavar="PATH", help="the base model, in place of the one the adapter names")
    parser.add_argument(
        "--allow-other-base", action="store_true", help="merge though the base is not the one recorded in training"
    )
    parser.add_argument(
        "--proof", choices=("tensors", "logits", "off"), default="tensors", help="of a merge; see `hf-recipes merge`"
    )
    parser.add_argument(
        "--base-values",
        choices=("original", "dequantized"),
        default="original",
        help="of a QLoRA adapter's base; see `hf-recipes merge`",
    )
    parser.add_argument(
        "--llama-cpp", metavar="DIR", help="a clone of llama.cpp, for GGUF (default: LLAMA_CPP, else what is on PATH)"
    )
    parser.add_argument("--samples", type=positive, metavar="N", help="rows of each set (default: the recipe's)")
    parser.add_argument(
        "--no-measure", action="store_true", help="only load each form back and compare it with the merged model"
    )
    parser.add_argument("--push", metavar="NAME", help="upload to the Hub; several forms become NAME-FORM")
    parser.add_argument("--public", action="store_true", help="with --push: where all can see it")
    parser.add_argument("--json", action="store_true", help="print export.json instead of the table")


def run(args: argparse.Namespace) -> int:
    """Export, print the table (or JSON), and return 0; a form that failed is a `CheckFailed` once all are done."""
    forms = parse_forms(args.forms)
    if args.public and not args.push:
        raise UserError("--public says who can see what --push uploads: give --push NAME, or leave it out.")
    if args.push:  # before the work that would go nowhere
        from hf_recipes.export.forms.give import repositories
        from hf_recipes.export.push import check_push

        check_push(repositories(args.push, [form.folder for form in forms]))
    directory = find_run(args.run_dir)
    if args.run_dir is None:
        logger.info("Run: %s", directory.path)

    from hf_recipes.export.forms.give import give_away, push_forms
    from hf_recipes.export.forms.table import render_forms
    from hf_recipes.training.export import ExportOptions, export_run

    options = ExportOptions(
        overwrite=args.overwrite,
        base=args.base,
        allow_other_base=args.allow_other_base,
        proof=args.proof,
        base_values=args.base_values,
        llama_cpp=args.llama_cpp,
        samples=args.samples,
        measure=not args.no_measure,
    )
    document = export_run(directory, forms, Path(args.output) if args.output else None, options)
    rows = document["rows"]
    lines = give_away(directory.path, rows)
    if args.json:
        print(json.dumps(json_safe(document), ensure_ascii=False, indent=2))
    else:
        table = render_forms([row for row in rows if not _was_not_written(row)])
        print(printable("\n".join([table, "", *lines])), flush=True)
    if args.push:  # the table is told, whatever the Hub says
        for line in push_forms(directory.path, rows, args.push, private=not args.public):
            logger.info(line)
    _fail(rows)
    return 0


def _was_not_written(row: dict[str, Any]) -> bool:
    return "path" in row and row["path"] is None


def _fail(rows: list[dict[str, Any]]) -> None:
    failed = [f"{row['name']}: {row['error']}" for row in rows if row.get("error")]
    if failed:
        whole = f"{len(failed)} of {len(rows)} rows failed" if len(failed) > 1 else "one form failed"
        raise CheckFailed(f"{whole}; the others are whole. " + " | ".join(failed))
