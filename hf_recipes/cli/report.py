"""`hf-recipes report`: the curves and the page of a run."""

from __future__ import annotations

import argparse
import json

from hf_recipes.core.run_directory import find_run

HELP = "write report.html and curves.png from what a run directory holds, finished or not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help="a run (default: here, else the newest)")
    parser.add_argument("--json", action="store_true", help="print the two paths as JSON")


def run(args: argparse.Namespace) -> int:
    """Write both files, print their paths, and return 0."""
    directory = find_run(args.run_dir)

    from hf_recipes.report.page import write_report

    paths = {"report": str(write_report(directory)), "curves": str(directory.path / "curves.png")}
    print(json.dumps(paths) if args.json else "\n".join(paths.values()))
    return 0
