"""`hf-recipes report`: the curves and the page of a run, several runs overlaid, a live view, or a terminal's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory, find_run

if TYPE_CHECKING:
    from hf_recipes.report.read_run import RunRecord

HELP = "write report.html and curves.png from what a run directory holds, finished or not; or overlay several runs"
COMPARISON = Path("comparison.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("run_dirs", nargs="*", metavar="RUN_DIR", help="runs (default: here, else the newest)")
    parser.add_argument("--output", metavar="FILE", help=f"where several runs are overlaid (default: {COMPARISON})")
    parser.add_argument("--text", action="store_true", help="print verdict, sparklines and alarms; write no file")
    parser.add_argument(
        "--serve", nargs="?", const="", metavar="PORT", help="serve a page on this machine that follows the runs live"
    )
    parser.add_argument("--json", action="store_true", help="print what was written (or served) as JSON")


def run(args: argparse.Namespace) -> int:
    """Do what is asked, print where it is, and return 0."""
    port = _port(args)
    if sum((args.text, port is not None, bool(args.output))) > 1:
        raise UserError("report: give one of --text, --serve and --output.")
    runs = [_find(path) for path in args.run_dirs or [None]]
    if args.text:
        return _print_text(runs, args.json)
    if port is not None:
        return _serve(runs, port, args.json)
    written = _compare(runs, Path(args.output or COMPARISON)) if len(runs) > 1 or args.output else _write(runs[0])
    print(json.dumps(written) if args.json else "\n".join(written.values()))
    return 0


def _find(path: str | None) -> RunDirectory:
    """A run; also the output directory of anybody's Trainer in which our callbacks wrote events."""
    if path is not None and (Path(path) / "events.jsonl").is_file():
        return RunDirectory(Path(path))
    return find_run(path)


def _port(args: argparse.Namespace) -> int | None:
    """The port asked for, None without --serve. A word behind --serve that is no number is a run's directory."""
    from hf_recipes.report.serve import DEFAULT_PORT

    if args.serve is None:
        return None
    if args.serve and not args.serve.lstrip("-").isdigit():
        args.run_dirs = [args.serve, *args.run_dirs]
        return DEFAULT_PORT
    return int(args.serve) if args.serve else DEFAULT_PORT


def _read(runs: Sequence[RunDirectory]) -> list[RunRecord]:
    """The runs' records; what of them could not be read is told."""
    from hf_recipes.report.read_run import read_run

    records = [read_run(run) for run in runs]
    for record in records:
        for problem in record.problems:
            logger.warning("%s: %s.", record.path, problem)
    return records


def _write(run: RunDirectory) -> dict[str, str]:
    from hf_recipes.report.page import write_record

    (record,) = _read([run])
    return {"report": str(write_record(record)), "curves": str(record.path / "curves.png")}


def _compare(runs: Sequence[RunDirectory], output: Path) -> dict[str, str]:
    from hf_recipes.core.files import write_text
    from hf_recipes.report.page import render_comparison

    if output.is_dir():
        raise UserError(f"--output '{output}' is a directory: name a file, such as {output / COMPARISON}.")
    write_text(output, render_comparison(_read(runs)))
    return {"comparison": str(output)}


def _print_text(runs: Sequence[RunDirectory], as_json: bool) -> int:
    from hf_recipes.core.printable import print_drawn
    from hf_recipes.report.terminal import BLOCKS, PLAIN_BLOCKS, render_text

    if as_json:
        raise UserError("report: --text is for people and --json for machines: give one of them.")
    print_drawn(lambda plain: render_text(_read(runs), blocks=PLAIN_BLOCKS if plain else BLOCKS), BLOCKS)
    return 0


def _serve(runs: Sequence[RunDirectory], port: int, as_json: bool) -> int:
    from hf_recipes.report.serve import HOST, make_server

    _read(runs)
    with make_server(runs, port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        followed = ", ".join(str(run.path) for run in runs)
        told = f"Following {followed} at {address} (Ctrl-C ends)"
        print(json.dumps({"url": address}) if as_json else told, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
