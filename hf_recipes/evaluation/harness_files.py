"""Task files of lm-evaluation-harness may name Python to run: found before anything is imported."""

from __future__ import annotations

from pathlib import Path

import yaml

from hf_recipes.core.errors import UserError, file_problem

_PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "binary", "set", "omap", "pairs", "!")


def refuse_code(path: Path) -> None:
    """Make sure that a task file, and the files that it includes, are data alone.

    Raises:
        UserError: one has ``!function`` or another tag of its own, is no YAML, or cannot be read; file and line are
            named.
    """
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file.resolve() not in seen:
            seen.add(file.resolve())
            waiting += _checked(file)


def _checked(path: Path) -> list[Path]:
    """Refuse code in one file; returns the files that it includes."""
    try:
        text = path.read_text(encoding="utf-8")
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            tag = getattr(event, "tag", None)
            if isinstance(tag, str) and tag.removeprefix("tag:yaml.org,2002:") not in _PLAIN_TAGS:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise UserError(
                    f"{path}, line {line} has {tag}, which would run Python: write the step as a template, or allow"
                    " the code of tasks by run_tasks(…, allow_code=True)."
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): convert it.") from None
    except OSError as error:
        raise UserError(file_problem(error)) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path} is no task: it must be a mapping with 'task', 'dataset_path' and the like.")
    return [file for key, value in root.value if key.value == "include" for file in _included(path, value)]


def _included(path: Path, value: yaml.Node) -> list[Path]:
    nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
    return [path.parent / node.value for node in nodes if isinstance(node, yaml.ScalarNode)]
