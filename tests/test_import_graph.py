"""The house's one direction: which room may import which, and that no module reaches itself through others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hf_recipes

ROOT = Path(hf_recipes.__file__).parent
# Rooms that know nobody but core/: each works alone in anybody's script.
ALONE = frozenset(("callbacks", "clusters", "data", "export", "models", "pipeline", "plan", "recipe", "report"))
ALLOWED = {
    "core": frozenset(),
    **dict.fromkeys(ALONE, frozenset(("core",))),
    # PEFT cannot load a bottleneck adapter before models/ has told it of the method.
    "checkpoints": frozenset(("core", "models")),
    # Curves are read again by the very detectors that watched them, and runs by the report's reader.
    "doctor": frozenset(("core", "callbacks", "report")),
    "evaluation": frozenset(("core", "data")),  # one way to read rows
    "metrics": frozenset(("core", "evaluation")),  # the judges, as `evaluate.Metric`s
    "convert": frozenset(("core", "data", "recipe")),  # which names are of data is told by data/
    "training": ALONE | {"core", "checkpoints", "doctor", "evaluation"},  # composes them
    # These stand on training/, as the verbs do.
    "profiling": ALONE | {"core", "checkpoints", "evaluation", "training"},
    "sweep": ALONE | {"core", "checkpoints", "evaluation", "training"},
    "quickstart": ALONE | {"core", "checkpoints", "doctor", "evaluation", "training"},
    "sft": frozenset(("training",)),
    "classify": frozenset(("training",)),
}
ON_TOP = ("", "cli")  # the lazy exports and the verbs may open any room


def _modules() -> dict[str, Path]:
    names = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def _imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Everything of ours that a module imports anywhere, also inside functions and for the type checker."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hf_recipes":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hf_recipes")


def _room(module: str) -> str:
    return [*module.split("."), ""][1]


def _graph() -> dict[str, set[str]]:
    known = _modules()
    return {name: set(_imports(path, known)) - {name} for name, path in known.items()}


def test_each_room_opens_only_the_doors_it_may() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in _graph().items()
        for target in targets
        if _room(module) not in ON_TOP
        and _room(target) != _room(module)
        and _room(target) not in ALLOWED[_room(module)]
    ]
    assert wrong == []


def test_no_module_reaches_itself() -> None:
    graph = _graph()
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join([*way[way.index(module) :], module])
        if module not in done:
            for target in graph.get(module, ()):
                visit(target, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_file_is_longer_than_one_sitting() -> None:
    """A smell and not a law: a file past this is a file that does two things."""
    long = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in _modules().items()}
    assert {name: lines for name, lines in long.items() if lines > 460} == {}
