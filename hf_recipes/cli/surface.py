"""The public surface, written down: ``python -m hf_recipes.cli.surface > docs/surface.md``.

What stands there is what users build on: it changes only on purpose, and then with a line in the changelog.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import hf_recipes
from hf_recipes.cli.main import VERBS, module_of
from hf_recipes.core.errors import CheckFailed, Preempted, UserError
from hf_recipes.core.events import KINDS
from hf_recipes.core.run_directory import RunDirectory

_CODES = {
    0: "done",
    CheckFailed.exit_code: "a check failed",
    UserError.exit_code: "wrong use, told in one sentence",
    Preempted.exit_code: "stopped on request, saved, to be resumed",
    130: "interrupted",
}


def render_surface() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Public surface"
    yield ""
    yield (
        "What you can build on: verbs and flags, exit codes, names of the Python package, files of a run, kinds of "
        "events. A test holds this page against the code, so it changes only on purpose, and then the changelog says "
        "so. The keys of recipes have [their own page](keys.md). Everything else may move."
    )
    yield from ("", "## Verbs and their flags", "")
    yield "| verb | arguments and flags |"
    yield "| --- | --- |"
    for verb in VERBS:
        yield f"| `{verb}` | {', '.join(_flags(verb))} |"
    yield from ("", "## Exit codes", "")
    yield "| code | meaning |"
    yield "| --- | --- |"
    for code, meaning in sorted(_CODES.items()):
        yield f"| {code} | {meaning} |"
    yield from ("", "## Python", "", "`from hf_recipes import …`; each is loaded on first use.", "")
    yield "| name | lives in |"
    yield "| --- | --- |"
    for name, module in sorted(hf_recipes._EXPORTS.items(), key=lambda item: item[0].lower()):
        yield f"| `{name}` | `hf_recipes.{module}` |"
    yield from ("", "## Files of a run directory", "")
    yield "| file | holds |"
    yield "| --- | --- |"
    for name, text in _files():
        yield f"| `{name}` | {text} |"
    yield from ("", "## Kinds of events", "", "In `events.jsonl`: " + ", ".join(f"`{kind}`" for kind in KINDS) + ".")


def _flags(verb: str) -> Iterator[str]:
    module = importlib.import_module(module_of(verb))
    parser = argparse.ArgumentParser(add_help=False)
    module.add_arguments(parser)
    # What a verb takes from what argparse leaves over stands in its usage alone: [RUN_DIR | FILE | -].
    for place in re.findall(r"\[([A-Z_]+(?: \| [^]|]+)+)\]", parser.usage or ""):
        yield from (f"`{name}`" for name in place.split(" | "))
    for action in parser._actions:
        name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
        yield f"`{name}`"
    if getattr(module, "TAKES_RECIPE_KEYS", False):
        yield "any recipe key"


def _files() -> Iterator[tuple[str, str]]:
    """Files and directories that a run has, by the properties that name them."""
    run = RunDirectory(Path("RUN"))
    for name, member in vars(RunDirectory).items():
        if isinstance(member, property) and member.fget and re.fullmatch(r"\w+_json|adapter|model", name):
            path = member.fget(run)
            yield path.name, " ".join((member.__doc__ or "").split())


if __name__ == "__main__":
    print(render_surface(), end="")
