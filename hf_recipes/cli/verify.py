"""`hf-recipes verify`: check a checkpoint, an adapter, a model, or all of a run, for damage."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.checkpoints.verification.findings import LEVELS, Problem
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe
from hf_recipes.core.printable import printable
from hf_recipes.core.run_directory import find_run, is_run, list_checkpoints

if TYPE_CHECKING:
    from hf_recipes.checkpoints.verification.verify import VerifyReport

_PROBLEMS_SHOWN = 50

HELP = "check a checkpoint, adapter or model for damage; for a run: its records, checkpoints, result and exports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options; the program's name and description are the caller's."""
    parser.add_argument(
        "directory", nargs="?", metavar="DIR", help="a checkpoint, adapter, model or run (default: here, or the newest)"
    )
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="content",
        help="structure: headers, shapes, indices, milliseconds; content: every byte (default); reload: also load the "
        "model on the CPU and run it once, which takes the memory of the model (of an adapter: of its base)",
    )
    parser.add_argument(
        "--base", metavar="DIR", help="the base model of an adapter (default: the one it names, if it is here)"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify, print one line a directory with its problems and notes; 0 if all are good, else 1."""
    directory = Path(args.directory) if args.directory else find_run(None).path

    from hf_recipes.checkpoints.verification.verify import verify_checkpoint

    runs = _runs_inside(directory) or [directory]
    targets = [target for run in runs for target in _targets(run, required=len(runs) == 1)]
    if targets == [directory]:
        reports = [_judged(verify_checkpoint(directory, args.level, args.base))]
    else:
        reports = [report for run in runs for report in _records(run, args.level)]
        reports += [_verify_one(path, args.level, args.base) for path in targets]
    ok = all(report.ok for report in reports)
    if args.json:
        text = json.dumps(json_safe({"ok": ok, "reports": [report.to_dict() for report in reports]}))
    else:
        text = "\n".join(line for report in reports for line in _lines(report))
    print(text)
    return 0 if ok else 1


def _runs_inside(directory: Path) -> list[Path]:
    """The runs in a directory of runs, such as ``runs/``; none where it is one itself, or a model."""
    if is_run(directory) or not directory.is_dir() or list_checkpoints(directory) or any(directory.glob("*.*")):
        return []
    return sorted(child for child in directory.iterdir() if is_run(child))


def _records(directory: Path, level: str) -> list[VerifyReport]:
    """The run's own files, where it is a run."""
    from hf_recipes.checkpoints.verification.run_files import verify_run_files

    return [verify_run_files(directory, level)] if is_run(directory) else []


def _targets(directory: Path, *, required: bool) -> list[Path]:
    """What to verify: of a run, or of any Trainer's output directory, all it holds; else the directory itself."""
    checkpoints = list_checkpoints(directory)
    if not is_run(directory) and not checkpoints:
        return [directory]
    results = [path for path in (directory / "adapter", directory / "model") if path.is_dir()]
    if not is_run(directory):  # what a script of one's own saved in the end has any name
        results = _models_in(directory)
    merged = sorted(path for path in directory.glob("merged-*") if path.is_dir())
    forms = sorted(path for path in directory.glob("exports/[!.]*") if path.is_dir())
    own = [directory] if not is_run(directory) and any(directory.glob("*.safetensors")) else []
    targets = [*own, *checkpoints, *results, *merged, *forms]
    if not targets and required:
        raise UserError(f"The run '{directory}' holds no checkpoint and no result yet: nothing to verify.")
    return targets


def _models_in(directory: Path) -> list[Path]:
    """The models and adapters right below a directory, its checkpoints and merged models left out."""
    configs = [*directory.glob("*/config.json"), *directory.glob("*/adapter_config.json")]
    others = {file.parent for file in configs if not file.parent.name.startswith(("checkpoint-", "merged-", "."))}
    return sorted(others)


def _verify_one(target: Path, level: str, base: str | None) -> VerifyReport:
    """One of several: that one cannot be read at all must not hide the others."""
    from hf_recipes.checkpoints.verification.verify import VerifyReport, verify_checkpoint

    try:
        is_adapter = (target / "adapter_config.json").is_file()
        return _judged(verify_checkpoint(target, level, base if is_adapter else None))
    except UserError as error:
        return VerifyReport(target, level, [Problem(".", str(error))], [], False, 0, 0, 0, 0.0)


def _judged(report: VerifyReport) -> VerifyReport:
    """With one problem more where all there is is sound, and a kill may have kept more from being written."""
    from hf_recipes.checkpoints.choose import UNFINISHED, is_unfinished

    if not report.ok or not is_unfinished(report.directory):
        return report
    return replace(report, problems=[Problem(".", f"{UNFINISHED}: a resume passes it over")], notes=[])


def _lines(report: VerifyReport) -> list[str]:
    verdict = "good" if report.ok else f"{len(report.problems)} problem{'s' if len(report.problems) > 1 else ''}"
    size = f"{report.files} files, {report.tensors} tensors, {report.checked_bytes / 1e6:,.1f} MB"
    lines = [f"{report.directory}: {verdict} ({report.level}; {size}; {report.seconds:.2f} s)"]
    lines += [f"  {problem}" for problem in report.problems[:_PROBLEMS_SHOWN]]
    if (more := len(report.problems) - _PROBLEMS_SHOWN) > 0:
        lines.append(f"  … and {more:,} more; --json lists them all.")
    lines += [f"  note: {note}" for note in report.notes]
    # Names come from the files that are judged: none may forge a line of its own, or command the terminal.
    return [printable(" ".join(line.splitlines())) for line in lines]
