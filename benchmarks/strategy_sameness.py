"""Does every strategy train the model that one process trains?

    python benchmarks/strategy_sameness.py [--only zero3 qlora] [--folder DIR] [--json FILE] [--markdown FILE]

Really runs each strategy × {full, lora, qlora} on CPU ranks over gloo (tests/strategies; accelerate is told that they
are devices, nothing else is changed): 30 steps of a tiny Llama in fp32 against one process with the same global batch,
then a run that is stopped by SIGTERM, gone on with, killed, and gone on with again. About 40 CPU seconds a cell; files
are written after each, and cells that stand in the JSON file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("", "strategies", "plan", "training"))]

from examined import cells, examine  # noqa: E402
from launched_ranks import LaunchedRanks  # noqa: E402
from sameness import Cell, Workplace  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="words that a cell's name must have, such as zero3 lora")
    parser.add_argument("--folder", type=Path, help="for the runs; kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="results, completed after each cell")
    parser.add_argument("--markdown", type=Path, help="the table, likewise")
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json and options.json.is_file() else []
    rows = {row["name"]: row for row in known}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        ranks = LaunchedRanks(folder)
        place = Workplace(folder, ranks)
        for cell in cells():
            if cell.name in rows or not all(word in cell.name.split("-") for word in options.only):
                continue
            rows[cell.name] = row = {"name": cell.name, **examined(place, cell)}
            print(cell.name, row["outcome"], *row["why"], flush=True)
            write(options, list(rows.values()))
        ranks.close()
    print(table(list(rows.values())))
    return int(any(row["outcome"] != "same" for row in rows.values()))


def examined(place: Workplace, cell: Cell) -> dict[str, Any]:
    """A row; one that crashed tells how."""
    try:
        return examine(place, cell, resumes=cell.strategy != "tp")
    except Exception as error:
        traceback.print_exc()
        return {**vars(cell), "outcome": "crashed", "why": [" ".join(f"{type(error).__name__}: {error}".split())[:600]]}


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, largest / mean difference from one process."""
    head = (
        "| strategy | ranks | method | loss | gradient norm | evaluation | saved values | verified, answers | resumed |"
    )
    lines = [head, "|" + " --- |" * 9]
    for row in rows:
        ranks = f"{row['ranks']}" + (" on 2 nodes" if row["nodes"] > 1 else "")
        method = row["method"] + ("" if row["tied"] else ", untied")
        name = row["strategy"] + (f" {row['tensor']} × fsdp" if row["tensor"] else "")
        if "values" not in row:
            lines.append(f"| {name} | {ranks} | {method} | {row['outcome']}: {'; '.join(row['why'])} |" + " |" * 5)
            continue
        values = f"{row['values']['max']:.1e}" if row["values"]["same_shapes"] else "other shapes"
        good = f"{'yes' if row['verified'] else 'no'}, {'same' if row['same_answers'] else 'others'}"
        resumed = f"{max(row['resumed'].values()):.1e}" if "resumed" in row else "no"
        parts = [
            name,
            ranks,
            method,
            *(pair(row[key]) for key in ("loss", "grad_norm")),
            f"{row['eval_loss']['max']:.1e}",
        ]
        lines.append("| " + " | ".join([*parts, values, good, resumed]) + " |")
        lines += [f"| | | | {'; '.join(row['why'])} |" + " |" * 5] if row["why"] else []
    return "\n".join(lines) + "\n"


def pair(differences: dict[str, float]) -> str:
    return f"{differences['max']:.1e} / {differences['mean']:.1e}"


if __name__ == "__main__":
    sys.exit(main())
