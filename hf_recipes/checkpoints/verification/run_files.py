"""Whether the records of a run can be read: what it was, what data it had, how it ended, and its event log."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.checkpoints.verification.json_files import MAX_JSON_BYTES, read_json_file
from hf_recipes.checkpoints.verification.paths import walk_files
from hf_recipes.checkpoints.verification.scan_facts import FileScan
from hf_recipes.checkpoints.verification.verify import VerifyReport, make_report

_MAX_LINES_TOLD = 5


def verify_run_files(run: Path, level: str) -> VerifyReport:
    """Read the JSON files and event logs that lie in a run directory itself; each level reads all of them.

    Args:
        run: the directory that holds ``run.json``.
        level: for the report.
    """
    begin = time.perf_counter()
    findings = Findings()
    names, refused = walk_files(run)
    scans: dict[str, FileScan] = {}
    for name in sorted({*names, *refused}):
        if "/" in name or not name.endswith((".json", ".jsonl")):
            continue
        scans[name] = _read(run / name, findings) if name in names else FileScan(0)
        if name in refused:
            findings.problem(name, refused[name])
    return make_report(run, level, scans, findings, proven=False, begin=begin)


def _read(file: Path, findings: Findings) -> FileScan:
    size = file.stat().st_size
    try:
        if file.suffix == ".jsonl":
            _check_lines(file, findings)
        elif size > MAX_JSON_BYTES:
            findings.note(f"{file.name} is larger than {MAX_JSON_BYTES // 10**6} MB: not parsed.")
        else:
            found = read_json_file(file.name, file.read_bytes())
            if found.damage:
                findings.problem(file.name, found.damage)
            elif found.note:
                findings.note(f"{file.name} {found.note}.")
            elif file.name == "run.json" and not _is_record(found.content):
                findings.problem(file.name, "is no record of a run (an object with the recipe it was started by)")
    except OSError as error:
        findings.problem(file.name, f"cannot be read ({error.strerror or error})")
    return FileScan(size)


def _is_record(content: object) -> bool:
    return isinstance(content, dict) and isinstance(content.get("recipe"), dict)


def _check_lines(file: Path, findings: Findings) -> None:
    """Every line of an event log is an object; a last one without its end was cut by a kill, which is no damage."""
    bad = 0
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if _is_object(line):
                continue
            if not line.endswith(b"\n"):
                findings.note(f"{file.name} ends within line {number}: the run was stopped while it wrote it.")
                continue
            bad += 1
            if bad <= _MAX_LINES_TOLD:
                findings.problem(file.name, f"line {number} is no JSON object")
    if bad > _MAX_LINES_TOLD:
        findings.problem(file.name, f"{bad - _MAX_LINES_TOLD} more lines are no JSON objects")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
