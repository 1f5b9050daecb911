"""Tasks of lm-evaluation-harness as lines of an answer file: one a task, with the scores of its documents."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.harness_files import refuse_code
from hf_recipes.evaluation.identity import digest
from hf_recipes.evaluation.kept import Line
from hf_recipes.evaluation.suite import EvaluationSuite


def check_tasks(tasks: Sequence[str]) -> None:
    """Tell before a model is loaded that tasks cannot be run.

    Raises:
        UserError: the harness is not installed, or a task's file holds code.
    """
    if tasks and importlib.util.find_spec("lm_eval") is None:
        raise UserError("lm_eval is not installed: run pip install 'hf-recipes[harness]'.")
    for task in tasks:
        if Path(task).is_file():
            refuse_code(Path(task))


def task_key(task: str, documents: int) -> str:
    """Names a task with so many of its documents; one from a file by what the file says."""
    said = Path(task).read_text("utf-8") if Path(task).is_file() else None
    return f"tasks-{digest([task, said, documents])}"


def task_lines(model: Any, tokenizer: Any, suite: EvaluationSuite, task: str) -> list[Line]:
    """Run one task, or a group of them, on at most `suite.samples` documents of each."""
    from hf_recipes.evaluation.harness import evaluate_tasks

    results = evaluate_tasks(model, tokenizer, [task], limit=suite.samples, batch_size=suite.batch_size)
    found = {name: {"metrics": each.metrics, "samples": each.samples} for name, each in results.items()}
    return [{"part": "tasks", "key": task_key(task, suite.samples), "task": task, "results": found}]


def by_sample(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """`lines` with each task's taken apart into its documents, so that two models are compared pair by pair.

    A metric that is not the mean of its documents' scores stays one line, and has no interval.
    """
    return [part for line in lines for part in (_documents(line) if line["part"] == "tasks" else [line])]


def _documents(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for task, result in line["results"].items():
        for metric, value in result["metrics"].items():
            samples = [float(each) for each in result["samples"].get(metric, ())]
            is_mean = bool(samples) and math.isclose(sum(samples) / len(samples), float(value), abs_tol=1e-6)
            name = f"{task}.{metric}"
            for index, score in enumerate(samples if is_mean else [float(value)]):
                yield {"part": "tasks", "key": f"{line['key']}-{name}-{index}", "scores": {name: score}}
