"""How far planned memory is from measured peaks: our formula, our trace, and what others estimate, on the same rows.

    python benchmarks/memory_error.py [--measure] [--rows WORDS] [--no-trace] [--measured FILE] [--json FILE]
    python benchmarks/memory_error.py --published FILE [--configs DIR]

Rows are short real runs (`memory_rows/rows.py`), measured on the CPU's tensor allocator and kept in `--measured`;
without `--measure` the table is made from what is kept there. `--published` is a file of published figures of other
stacks, which is not part of this repository (`memory_rows/published.py` says what its rows mean here); its models'
configs are in `--configs`, by default the directory `configs` beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_rows.measure import measure_apart, prepare

prepare()

from memory_rows.estimators import OTHERS  # noqa: E402
from memory_rows.published import Published, read_published  # noqa: E402
from memory_rows.rows import Row, layout_of, rows_like, settings_of  # noqa: E402

from hf_recipes.plan.geometry import Geometry  # noqa: E402
from hf_recipes.plan.layout import Layout  # noqa: E402
from hf_recipes.plan.memory.estimate import estimate_memory  # noqa: E402
from hf_recipes.plan.read_geometry import read_geometry  # noqa: E402
from hf_recipes.plan.settings import TrainingSettings  # noqa: E402

KEPT = Path(__file__).parent / "results" / "2026-11-30-memory.json"
FORMULA, TRACE = "formula", "trace"


@dataclass(frozen=True)
class Line:
    """One row of the table: measured bytes, and estimates by who made them. `left_out` says why it does not count."""

    name: str
    measured: float
    phase: str
    estimates: dict[str, float]
    left_out: str = ""

    def error(self, by: str) -> float | None:
        """Relative error, negative for an underestimate; None where there is no estimate."""
        return self.estimates[by] / self.measured - 1 if by in self.estimates else None


def main() -> int:
    options = _options()
    warnings.filterwarnings("ignore")
    if options.published:
        lines = list(published_lines(options.published, options.configs or options.published.parent / "configs"))
    else:
        rows = rows_like(options.rows)
        kept = measure_rows(rows, options.measured, anew=options.measure)
        lines = [measured_line(row, kept[row.name], trace=options.trace) for row in rows if row.name in kept]
    names = [name for name in (FORMULA, TRACE, *OTHERS) if any(name in line.estimates for line in lines)]
    print(table(lines, names))
    print()
    print(summary(lines, names))
    if options.json:
        options.json.write_text(json.dumps([vars(line) for line in lines], indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="only rows whose name has all of these words")
    parser.add_argument("--measure", action="store_true", help="run the rows that are not kept yet")
    parser.add_argument("--measured", type=Path, default=KEPT, help="where measured peaks are kept (JSON)")
    parser.add_argument(
        "--no-trace", dest="trace", action="store_false", help="leave out the trace, which takes longer"
    )
    parser.add_argument("--published", type=Path, help="a file of published figures, in place of the measured rows")
    parser.add_argument("--configs", type=Path, help="directory of config.json files named after the published models")
    parser.add_argument("--json", type=Path, help="write the table's numbers there too")
    return parser.parse_args()


def measure_rows(rows: Iterable[Row], path: Path, *, anew: bool) -> dict[str, Any]:
    """What is kept in `path`, with the rows that were missing measured and added where `anew`."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for row in rows if anew else ():
        if row.name in kept:
            continue
        try:
            kept[row.name] = measure_apart(row)
        except RuntimeError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        told = f"{row.name}: {kept[row.name]['peak'] / 1e6:.1f} MB, {kept[row.name]['seconds']} CPU seconds"
        print(told, file=sys.stderr, flush=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(kept, indent=1))
        partial.replace(path)
    return kept


def measured_line(row: Row, found: dict[str, Any], *, trace: bool) -> Line:
    """The estimates of a measured row. The trace follows one rank without communication, so it is for one rank."""
    from memory_rows import build
    from memory_rows.shapes import build_config

    config = build_config(row.shape, row.attention)
    geometry = read_geometry(config, lambda model: build.attach(row, model))
    settings, layout = settings_of(row), layout_of(row)
    estimates = _estimates(config, geometry, settings, layout, "cpu", "active")
    if trace and row.ranks == 1:
        from memory_rows.tracing import trace_row

        estimates[TRACE] = trace_row(row).memory.active_bytes
    return Line(row.name, found["peak"], found["phase"], estimates)


def published_lines(path: Path, configs: Path) -> Iterable[Line]:
    """The estimates of published rows; their traces are left out, since they are of other code."""
    for each in read_published(path):
        config = _config(json.loads((configs / f"{each.model}.json").read_text()), each)
        geometry = read_geometry(config, _lora(each) if each.r else None)
        estimates = {}
        if each.settings.method != "inference":
            estimates = _estimates(config, geometry, each.settings, Layout(), "cuda", each.kind)
            estimates[FORMULA] += each.besides(geometry)
        yield Line(each.name, each.measured, each.kind, estimates, each.left_out)


def _config(values: dict[str, Any], each: Published) -> Any:
    from transformers import AutoConfig

    kind = values.pop("model_type")
    return AutoConfig.for_model(kind, **{**values, **({"tie_word_embeddings": False} if each.untied else {})})


def _lora(each: Published) -> Callable[[Any], Any]:
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    settings = LoraSettings(r=each.r, alpha=2 * each.r, dropout=0.0, target_modules=each.targets)
    return lambda model: attach_lora(model, settings)


def _estimates(
    config: Any, geometry: Geometry, settings: TrainingSettings, layout: Layout, device: str, kind: str
) -> dict[str, float]:
    from hf_recipes.core.meta_model import model_on_meta

    model = model_on_meta(config)
    ours = estimate_memory(geometry, settings, layout, device=device)
    found = {FORMULA: ours.reserved_bytes if kind == "reserved" else ours.active_bytes}
    return found | {name: other(model, geometry, settings, layout) for name, other in OTHERS.items()}


def table(lines: Sequence[Line], names: Sequence[str]) -> str:
    """Markdown: measured bytes and each estimate's error."""
    head = ["row", "peak in", "measured, MB", *names]
    shown = [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}"]
    for line in lines:
        errors = [_percent(line.error(name)) for name in names]
        name = f"{line.name} ({line.left_out})" if line.left_out else line.name
        shown.append(f"| {name} | {line.phase} | {line.measured / 1e6:,.1f} | {' | '.join(errors)} |")
    return "\n".join(shown)


def summary(lines: Sequence[Line], names: Sequence[str]) -> str:
    """Markdown: median and 95th percentile of the absolute error, and the worst underestimate."""
    shown = ["| estimate | rows | median error | 95th percentile | worst underestimate |", "|---|---:|---:|---:|---:|"]
    for name in names:
        errors = [error for line in lines if not line.left_out and (error := line.error(name)) is not None]
        if not errors:
            continue
        sizes = sorted(abs(error) for error in errors)
        figures = [statistics.median(sizes), percentile(sizes, 0.95), min(0.0, *errors, 0.0)]
        shown.append(f"| {name} | {len(errors)} | {' | '.join(_percent(each, signed=False) for each in figures)} |")
    return "\n".join(shown)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie, linearly between neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _percent(value: float | None, *, signed: bool = True) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
