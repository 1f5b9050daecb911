"""Task files of lm-evaluation-harness may name Python to run: found before anything is imported."""

from __future__ import annotations

from collections.abc import Container, Iterator
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
    for _ in _roots(path):
        pass


def refuse_foreign_metrics(path: Path, known: Container[str]) -> None:
    """Make sure that a task file, and the files that it includes, name metrics of the harness alone: any other is taken
    for a Python file here, or one on the Hub, and run (`evaluate.load`).

    Args:
        path: of the task.
        known: names of the harness's own metrics.

    Raises:
        UserError: one names another metric, with file and line; or see `refuse_code`.
    """
    for file, root in _roots(path):
        for node in _mappings(root):
            pairs = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
            metric = pairs.get("metric")
            if metric is None:
                continue
            foreign = "hf_evaluate" in pairs and pairs["hf_evaluate"].value not in ("false", "False")
            if foreign or not isinstance(metric, yaml.ScalarNode) or metric.value not in known:
                raise UserError(
                    f"{file}, line {metric.start_mark.line + 1} names a metric that lm_eval has not, for which it would"
                    " run Python from here or the Hub: take one of its own, or allow the code of tasks by"
                    " run_tasks(…, allow_code=True)."
                )


def _roots(path: Path) -> Iterator[tuple[Path, yaml.MappingNode]]:
    """A task file and all that it includes, each once, free of tags that run code."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file.resolve() not in seen:
            seen.add(file.resolve())
            root = _checked(file)
            yield file, root
            waiting += [each for key, value in root.value if key.value == "include" for each in _included(file, value)]


def _mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping of a file, each once however often aliases name it."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
        waiting += [part for each in node.value for part in (each if isinstance(each, tuple) else (each,))]


def _checked(path: Path) -> yaml.MappingNode:
    """Refuse code in one file; returns what it holds."""
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
    return root


def _included(path: Path, value: yaml.Node) -> list[Path]:
    nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
    return [path.parent / node.value for node in nodes if isinstance(node, yaml.ScalarNode)]
