"""How many bytes does a rank send in a step, by strategy? Counted from the collectives, held against the theory.

    python benchmarks/communication.py [--only zero2 lora] [--measure] [--folder DIR] [--counts FILE]

Really runs each strategy on CPU ranks over gloo (tests/strategies; accelerate is told that they are devices, nothing
else is changed): three steps of a small Llama, every collective of the last written down on each rank
(`communication_rows/recorder.py`). Counts are kept in `--counts`; without `--measure` the tables are made from what is
kept there. About 20 CPU seconds a run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("", "strategies", "plan", "training"))]

from communication_rows.cells import SIZES, cells, count, prepare  # noqa: E402
from communication_rows.wire import on_the_wire  # noqa: E402

KEPT = Path(__file__).parent / "results" / "2026-11-30-communication.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="words that a run's name must have, such as zero3 lora")
    parser.add_argument("--measure", action="store_true", help="run what is not kept yet")
    parser.add_argument("--folder", type=Path, help="for the runs; kept (default: a temporary one)")
    parser.add_argument("--counts", type=Path, default=KEPT, help="where counts are kept (JSON)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    kept: dict[str, Any] = {"counts": {}, "wire": {}}
    kept |= json.loads(options.counts.read_text()) if options.counts.is_file() else {}
    if options.measure:
        with tempfile.TemporaryDirectory() as temporary:
            measure(options, kept, options.folder or Path(temporary))
    with tempfile.TemporaryDirectory() as temporary:
        print(report(kept, Path(temporary)))
    return 0


def report(kept: dict[str, Any], folder: Path) -> str:
    """The tables. The model whose shapes the theory needs is made anew in `folder`."""
    from communication_rows.recorder import make_model
    from communication_rows.tables import messages, volumes, wire

    make_model(str(folder), SIZES)
    counts = kept["counts"]
    return "\n\n".join([volumes(counts, folder / "untied"), messages(counts), wire(kept["wire"])])


def measure(options: argparse.Namespace, kept: dict[str, Any], folder: Path) -> None:
    """Run what is missing in `kept`, and write it after each."""
    from launched_ranks import LaunchedRanks

    folder.mkdir(parents=True, exist_ok=True)
    ranks = LaunchedRanks(folder)
    prepare(folder, ranks)
    counts = kept["counts"]
    for cell in cells():
        if cell.name in counts or not all(word in cell.name.split() for word in options.only):
            continue
        try:
            counts[cell.name] = count(cell, folder, ranks)
        except RuntimeError as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
            continue
        print(cell.name, file=sys.stderr, flush=True)
        write(options.counts, kept)
    ranks.close()
    for number in () if options.only or kept["wire"] else (2, 4):
        try:
            kept["wire"][str(number)] = on_the_wire(number)
        except RuntimeError as error:
            print(f"left out: {error}", file=sys.stderr)
    write(options.counts, kept)


def write(path: Path, kept: dict[str, Any]) -> None:
    """A line a run."""
    counts = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in kept["counts"].items())
    wire = json.dumps(kept["wire"])
    path.write_text(f'{{\n "wire": {wire},\n "counts": {{\n{counts}\n }}\n}}\n')


if __name__ == "__main__":
    sys.exit(main())
