"""Tasks of lm-evaluation-harness on a model that is loaded already: by the path of a YAML file, or by name.

The package does all the work; this hands it the model, keeps code in a task's file from running unasked, and brings
its results into numbers by name.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.log import logger
from hf_recipes.evaluation.harness_files import refuse_code, refuse_foreign_metrics

_FEWSHOT_SEED = 1234  # the package's own default, without which examples would differ from what it publishes


@dataclass(frozen=True)
class TaskResult:
    """Args:
    metrics: by name, as the task aggregates them; of a filter other than the first as ``metric,filter``.
    samples: the same metrics of each document, in order, where they are numbers; for paired comparisons.
    """

    metrics: dict[str, float]
    samples: dict[str, list[float]]


def run_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str | Path],
    *,
    limit: int | None = None,
    batch_size: int = 8,
    allow_code: bool = False,
) -> dict[str, dict[str, float]]:
    """The metrics of `evaluate_tasks` alone: task → metric → value."""
    results = evaluate_tasks(model, tokenizer, tasks, limit=limit, batch_size=batch_size, allow_code=allow_code)
    return {name: result.metrics for name, result in results.items()}


def evaluate_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str | Path],
    *,
    limit: int | None = None,
    batch_size: int = 8,
    allow_code: bool = False,
) -> dict[str, TaskResult]:
    """Run tasks of lm-evaluation-harness, with prompts as the tasks write them (no chat template).

    Args:
        model: a causal LM, on its device.
        tokenizer: its tokenizer.
        tasks: paths of YAML files, whose own relative paths count from the file (``dataset_path: json`` with
            ``dataset_kwargs: {data_files: …}`` needs no network), or names of the tasks that the package brings along.
        limit: documents of each task, from its start; all where None.
        batch_size: sequences in one forward pass.
        allow_code: let ``!function`` in a file import the Python beside it, and metrics that are not the package's run.

    Raises:
        UserError: `lm_eval` is not installed, or a task is not there, holds code, names a metric that is code, or
            cannot be read.
    """
    harness = _harness()
    from jinja2 import TemplateError

    with _quiet(), _sandboxed_templates():
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        for task in tasks:
            for part, found in _load(harness, task, allow_code).items():
                loaded[part].update(found)
        for name, task in loaded["tasks"].items():
            if task.get_config("unsafe_code"):
                raise UserError(
                    f"The task '{name}' runs code that the model writes, which is not done here: leave it out."
                )
            task.set_fewshot_seed(seed=_FEWSHOT_SEED)
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
        was_training = model.training
        try:
            adapter = harness.models.huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
            results = harness.evaluator.evaluate(lm=adapter, task_dict=loaded, limit=limit, bootstrap_iters=0)
        except TemplateError as error:
            reason = str(error).rstrip(".")
            raise UserError(f"A template of {', '.join(map(str, tasks))} fails: {reason}.") from error
        finally:
            model.train(was_training)
    return {name: _result(scores, results["samples"].get(name, [])) for name, scores in results["results"].items()}


def _harness() -> Any:
    try:
        import lm_eval.api.metrics
        import lm_eval.api.registry
        import lm_eval.evaluator
        import lm_eval.models.huggingface
        import lm_eval.tasks
    except ImportError:
        raise UserError("lm_eval is not installed: run pip install 'hf-recipes[harness]'.") from None
    return lm_eval


def _load(harness: Any, task: str | Path, allow_code: bool) -> dict[str, Any]:
    path = Path(task)
    is_file = path.suffix in (".yaml", ".yml", ".json")
    if is_file and not path.is_file():
        raise UserError(f"The task file '{path}' does not exist: correct evaluation.tasks in the recipe.")
    if is_file and not allow_code:
        refuse_code(path)
        refuse_foreign_metrics(path, harness.api.registry.METRIC_REGISTRY)
    if is_file and allow_code:
        logger.warning(f"{path}: Python that it names is run.")
    try:
        # The package takes paths inside a task from where the process stands.
        with contextlib.chdir(path.parent) if is_file else contextlib.nullcontext():
            manager = harness.tasks.TaskManager(include_defaults=not is_file)
            return dict(manager.load([path.name if is_file else str(task)]))
    except Exception as error:  # yaml, datasets, jinja and the package itself each raise their own
        reason = f"{type(error).__name__}: {first_line(str(error))}"
        raise UserError(f"The task '{task}' cannot be loaded: {reason}.") from error


def _result(scores: dict[str, Any], samples: Sequence[dict[str, Any]]) -> TaskResult:
    metrics: dict[str, float] = {}
    for key, value in scores.items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        metrics[metric if metric not in metrics else f"{metric},{filter_name}"] = float(value)
    return TaskResult(metrics, _by_sample(samples, metrics))


def _by_sample(samples: Sequence[dict[str, Any]], metrics: dict[str, float]) -> dict[str, list[float]]:
    first = samples[0]["filter"] if samples else ""
    own = [sample for sample in samples if sample["filter"] == first]
    found: dict[str, list[float]] = {}
    for metric in metrics:
        values = [sample.get(metric) for sample in own]
        if values and all(isinstance(value, (bool, int, float)) and math.isfinite(value) for value in values):
            found[metric] = [float(value) for value in values if value is not None]
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The package warns of each metric that goes without an explicit aggregation, which is the usual case."""
    log = logging.getLogger("lm_eval")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def _sandboxed_templates() -> Iterator[None]:
    """Templates of tasks are rendered in Jinja's sandbox: outside it a template can run any Python."""
    import lm_eval.utils
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    before = lm_eval.utils.env
    sandbox = ImmutableSandboxedEnvironment(
        loader=before.loader, undefined=before.undefined, keep_trailing_newline=before.keep_trailing_newline
    )
    sandbox.filters.update(before.filters)
    lm_eval.utils.env = sandbox
    try:
        yield
    finally:
        lm_eval.utils.env = before
