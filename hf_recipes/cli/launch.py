"""`hf-recipes launch`: from one recipe to the job files of a scheduler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.cli.flags import require_recipe
from hf_recipes.cli.launch_checks import check_recipe
from hf_recipes.cli.launch_flags import FLAGS, add_flags, check_flags, whole_number
from hf_recipes.cli.launch_targets import TARGETS, Target
from hf_recipes.clusters.job import ACCELERATE, DEEPSPEED, RECIPE, Job, check_name, check_time, default_cores, job_name
from hf_recipes.clusters.texts import check_run_directory
from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    from hf_recipes.plan.layout import Layout
    from hf_recipes.recipe.resolve import Recipe

HELP = """Write the job files of a scheduler from one recipe: Slurm, Kubernetes, SkyPilot or Ray. A job that is
stopped, or whose machine is taken away, goes on from its last good checkpoint.

  hf-recipes launch --config my.yaml --on slurm --write jobs/mine --nodes 2 --gpus 8 --time 24:00:00

Any recipe key can be given as --key value. Nothing is started: the line that submits the job is printed.
"""
TAKES_RECIPE_KEYS = True
_VERBS = ("sft", "classify")


@dataclass
class _Files:
    """What goes into the directory, and what the user is told about it."""

    texts: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the job and of the schedulers; every other flag is a recipe key."""
    add_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Make the files, write them, say how to submit."""
    from hf_recipes.cli.flags import refuse_misspelt_flags
    from hf_recipes.recipe.shipped import find_recipe

    refuse_misspelt_flags("launch", FLAGS, options.recipe_keys)
    check_flags(options, tuple(TARGETS))
    target = TARGETS[options.on]
    with redirect_stdout(sys.stderr):  # libraries talk; standard output is for the files and the line that submits
        job, files = _make(options, target)
    folder = Path(options.write)
    _check_free(folder, files.texts, find_recipe(options.config), overwrite=options.overwrite)
    _write(folder, files.texts)
    for sentence in files.told:
        print(sentence)
    print("\nWritten: " + ", ".join(str(folder / name) for name in files.texts))
    for line in target.submit(job, options.write.rstrip("/")):
        print(f"  {line}")
    return 0


def _make(options: argparse.Namespace, target: Target) -> tuple[Job, _Files]:
    from hf_recipes.recipe.resolve import load_recipe

    require_recipe(options.config)
    if options.verb not in _VERBS:
        raise UserError(f"--verb: '{options.verb}' is none of {', '.join(_VERBS)}.")
    recipe = load_recipe(options.config, options.recipe_keys)
    check_recipe(recipe, options.verb)
    files = _Files()
    layout = _layout(options, recipe, files)
    configs = _configs(layout, target.folder(options.write.rstrip("/")))
    job = _job(options, target, recipe, layout, tuple(configs))
    files.texts[RECIPE] = _yaml(_completed(options, target, recipe, layout, job, files))
    files.texts |= configs
    files.texts[target.file] = target.text(options, job, dict(files.texts))
    return job, files


def _layout(options: argparse.Namespace, recipe: Recipe, files: _Files) -> Layout:
    """How the recipe's strategy lies over the machines, told with the global batch that comes of it."""
    from hf_recipes.plan.strategy.names import check_sizes, describe, layout_of
    from hf_recipes.training.strategy_check import check_layout
    from hf_recipes.training.strategy_file import recipe_sizes

    nodes = whole_number(options, "nodes") or 1
    devices = whole_number(options, "gpus", least=0) or 0
    ranks = nodes * (devices or int(recipe.get("num_processes", 1)))
    sizes, strategy = recipe_sizes(recipe.values), str(recipe.get("strategy", "auto"))
    if strategy == "auto":
        check_sizes(strategy, sizes)
        strategy = "ddp" if ranks > 1 else "single"
        if ranks > 1:
            files.told.append("strategy: auto is ddp here; `hf-recipes plan --write` chooses by memory and time.")
    layout = layout_of(strategy, ranks, nodes, sizes)
    check_layout(recipe, layout, devices)
    micro, steps = int(recipe.get("per_device_train_batch_size", 8)), int(recipe.get("gradient_accumulation_steps", 1))
    files.told.append(
        f"{describe(layout)}, on {nodes} node{'s' * (nodes > 1)}: {micro * steps * layout.data_parallel} rows a step "
        f"({micro} × {steps} accumulated × {layout.data_parallel} data-parallel ranks)."
    )
    return layout


def _job(options: argparse.Namespace, target: Target, recipe: Recipe, layout: Layout, configs: tuple[str, ...]) -> Job:
    name = job_name(recipe.name) if options.name is None else check_name(options.name)
    devices = whole_number(options, "gpus", least=0) or 0
    check_run_directory(output_dir := str(recipe.get("output_dir") or f"runs/{name}"))
    wanted = {**target.keys(options), **{key: recipe.values[key] for key in recipe.given}}
    return Job(
        name=name,
        output_dir=target.output(output_dir),
        verb=options.verb,
        nodes=layout.nodes,
        devices=devices,
        ranks=layout.ranks_per_node,
        accelerator=options.gpu,
        cores=whole_number(options, "cpus") or default_cores(devices or layout.ranks_per_node),
        time_limit=None if options.time is None else check_time(options.time),
        grace_seconds=float(wanted.get("preemption_grace_seconds") or 25.0),
        configs=configs,
    )


def _completed(
    options: argparse.Namespace, target: Target, recipe: Recipe, layout: Layout, job: Job, files: _Files
) -> dict[str, Any]:
    """The keys that the user gave, with the job's own; told where one takes another's place."""
    from hf_recipes.plan.strategy.names import strategy_of

    given = _given(options, recipe, same_files=target.same_files)
    decided = {
        "strategy": strategy_of(layout),
        "output_dir": job.output_dir,
        "resume_from_checkpoint": "auto",
    }
    for key in ("resume_from_checkpoint", "output_dir"):
        if key in given and given[key] != decided[key]:
            files.told.append(f"{key}: {given[key]} is {decided[key]} in this job.")
    if not target.same_files and Path(job.output_dir).is_relative_to(Path.home()):
        files.told.append(
            f"output_dir: {job.output_dir} lies in the home directory of this machine; its nodes may have another: "
            "write the path as they see it."
        )
    if given.pop("num_processes", layout.ranks_per_node) != layout.ranks_per_node:
        files.told.append(f"num_processes: the recipe's is put aside for --gpus {job.devices}.")
    for key, value in target.keys(options).items():
        if key not in given:
            decided[key] = value
            files.told.append(f"{key} is set for {options.on}: {value}")
    if local := _local_paths(recipe, given):
        files.told.append(f"Of this machine: {'; '.join(local)}: {target.data}.")
    return {**given, **decided}


def _given(options: argparse.Namespace, recipe: Recipe, *, same_files: bool) -> dict[str, Any]:
    """Paths as they are found here where they mean the same there, else as the user wrote them."""
    from hf_recipes.recipe.overlay import apply_overrides, parse_overrides
    from hf_recipes.recipe.shipped import find_recipe
    from hf_recipes.recipe.yaml_lines import load_yaml

    if same_files:
        return {key: value for key, value in recipe.values.items() if key in recipe.given}
    values, _ = load_yaml(find_recipe(options.config))
    return apply_overrides(values, parse_overrides(options.recipe_keys))


def _local_paths(recipe: Recipe, given: Mapping[str, Any]) -> list[str]:
    """What the recipe reads that is a file or folder here, by key, as it is written there; what is shipped with the
    package is everywhere."""
    from hf_recipes.recipe.shipped import recipes_root

    written = dict(_named_paths(given))
    found = {key: Path(path) for key, path in _named_paths(recipe.values) if path and Path(path).exists()}
    shipped = recipes_root().resolve()
    return [f"{key} {written[key]}" for key, path in found.items() if shipped not in path.resolve().parents]


def _named_paths(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    sources = [source.get("path") if isinstance(source, dict) else source for source in values.get("datasets") or []]
    named = [(f"datasets.{index}.path", path) for index, path in enumerate(sources)]
    named.append(("model_name_or_path", values.get("model_name_or_path")))
    evaluation = values.get("evaluation")
    if isinstance(evaluation, Mapping):
        named += [(f"evaluation.{key}", evaluation.get(key)) for key in ("domain", "schema", "general")]
    return [(key, path) for key, path in named if isinstance(path, str)]


def _configs(layout: Layout, folder: str) -> dict[str, str]:
    """Accelerate's config file and DeepSpeed's, where a launcher has to be told more than the number of ranks."""
    import json

    from hf_recipes.plan.strategy.launcher_files import is_plain, launcher_files

    if is_plain(layout):
        return {}
    files = launcher_files(layout, f"{folder}/{DEEPSPEED}" if folder else DEEPSPEED)
    return {
        name: json.dumps(content, indent=2) + "\n" if name == DEEPSPEED else _yaml(content)
        for name, content in files.items()
    }


def _yaml(content: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=1000)


def _check_free(folder: Path, texts: Mapping[str, str], config: Path, *, overwrite: bool) -> None:
    """Refuse to write over what is there unasked, and over the user's recipe in any case."""
    if folder.is_file():
        raise UserError(f"--write: '{folder}' is a file: name a directory.")
    there = [folder / name for name in _ours(texts) if (folder / name).exists()]
    if folder.resolve() == config.resolve().parent or any(path.samefile(config) for path in there):
        raise UserError(f"--write: '{folder}' holds the recipe '{config}', which must stay: name another directory.")
    if there and not overwrite:
        raise UserError(f"'{there[0]}' is there already: name another directory, or give --overwrite.")
    if taken := [path for path in there if path.is_dir()]:
        raise UserError(f"--write: '{taken[0]}' is a directory, and a file goes there: name another directory.")


def _ours(texts: Mapping[str, str]) -> list[str]:
    """What a job's directory may hold of ours."""
    return sorted({RECIPE, ACCELERATE, DEEPSPEED, *texts})


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """New files take the place of old ones when the last of them is written. Files of another strategy go: they
    would be taken for this one's."""
    from hf_recipes.core.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
    staged = {name: folder / f".{name}.new" for name in texts}
    try:
        for name, path in staged.items():
            write_text(path, texts[name])
        for name, path in staged.items():
            path.replace(folder / name)
    finally:
        for path in filter(Path.is_file, staged.values()):
            path.unlink()
    for name in set(_ours(texts)) - set(texts):
        (folder / name).unlink(missing_ok=True)
