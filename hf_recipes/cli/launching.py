"""What the training verbs share: their flags, the checks before the launch, and the launch."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.cli.flags import require_recipe
from hf_recipes.recipe.defaults import default_told
from hf_recipes.recipe.key_table import KeySpec, load_key_table
from hf_recipes.recipe.validate import REFUSED_KEYS

if TYPE_CHECKING:
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.training.auto_strategy import AutoChoice
    from hf_recipes.training.machines import Machine

# (datasets, bad_rows) → raises UserError: a quick look at the data before ranks are started.
CheckData = Callable[[list[dict[str, Any]], str], None]


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--num_processes``, ``--config_file``; and a help that ends with the table of recipe keys."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--num_processes", type=int, metavar="N", help="number of ranks on this machine (default 1)")
    parser.add_argument("--config_file", metavar="FILE", help="an accelerate config file for the launch")
    parser.add_argument("--num_machines", metavar="N", help="machines that train together, this command on each")
    parser.add_argument(
        "--machine_rank", metavar="R", help="number of this machine, from 0; the first keeps the records"
    )
    parser.add_argument("--main_process_ip", metavar="IP", help="address of the first machine")
    parser.add_argument("--main_process_port", metavar="PORT", help="a free port of the first machine (default 29500)")
    parser.add_argument("--help-all", action="store_true", help="all recipe keys, those of the trainer too")
    parser.epilog = "recipe keys (those of hf_recipes; --help-all lists all):\n" + key_help("RecipeArguments")


def key_help(*owners: str) -> str:
    """The table of recipe keys as text, for those dataclasses."""
    return "\n".join(_line(spec) for spec in load_key_table().values() if spec.owner in owners and _used(spec))


def _used(spec: KeySpec) -> bool:
    return spec.name not in REFUSED_KEYS


def _line(spec: KeySpec) -> str:
    choices = f" [{'|'.join(spec.choices)}]" if spec.choices and len(spec.choices) <= 12 else ""
    return f"  --{spec.name} (default {default_told(spec.name, spec.default, _short)}){choices}\n      {spec.help}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def launch_recipe(module: str, options: argparse.Namespace, check_data: CheckData) -> int:
    """Check recipe, data and output directory in this process, then start the ranks and return the run's code.

    Raises:
        UserError: whatever is wrong with them, before any rank starts.
    """
    if options.help_all:
        print(key_help("RecipeArguments", "ModelConfig", "SFTConfig"))
        return 0
    from hf_recipes.callbacks.config import WatchConfig
    from hf_recipes.models.attention import check_attention
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.classifier_recipe import check_no_classifier
    from hf_recipes.training.launch import launch
    from hf_recipes.training.machines import place_of
    from hf_recipes.training.on_finish import run_on_finish
    from hf_recipes.training.preemption_keys import check_preemption_keys
    from hf_recipes.training.strategy_check import check_strategy
    from hf_recipes.training.strategy_file import recipe_sizes, strategy_file
    from hf_recipes.training.trackers import check_trackers

    require_recipe(options.config)
    keys = list(options.recipe_keys)
    recipe = load_recipe(options.config, keys)
    WatchConfig.from_dict(recipe.get("watch"))
    check_attention(recipe.get("attn_implementation"))
    check_trackers(recipe.get("report_to"))
    check_data(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    if module == "hf_recipes.sft":
        check_no_classifier(recipe, "sft")
        check_evaluation(recipe)
    _tell_foreign_evaluation(recipe)
    machine = place_of(vars(options), options.config_file)
    ranks = _ranks(options, recipe, machine)
    check_preemption_keys(recipe)
    if options.config_file is None:
        check_strategy(recipe, ranks * machine.count, machine.count)
    output = _free_output(recipe, machine)  # the last, since it makes the directory
    fixed = ["--config", options.config, *_without(keys, "output_dir"), "--output_dir", str(output)]
    fixed += ["--num_processes", str(ranks * machine.count)]
    config_file = options.config_file
    if config_file is None:
        sizes = recipe_sizes(recipe.values)
        chosen = _choose(module, recipe, ranks, machine)
        fixed += chosen.arguments
        config_file = strategy_file(chosen.strategy, ranks * machine.count, output, sizes, machine.count)
    grace = float(recipe.get("preemption_grace_seconds", 25.0))
    code = launch(
        module, fixed, output, num_processes=ranks, config_file=config_file, machine=machine, grace_seconds=grace
    )
    run_on_finish(recipe.get("on_finish"), output, code)
    if code == 0 and machine.rank == 0:
        _tell_next(module, recipe, output)
    return code


def check_evaluation(recipe: Recipe) -> None:
    """Find what is wrong with a recipe's `evaluation:` now, and not in the ranks or after the training."""
    from hf_recipes.evaluation.judging import checked_suite

    checked_suite(recipe.get("evaluation"))


def _tell_next(module: str, recipe: Recipe, output: Path) -> None:
    """Where the result is, and what is usually done with it; nothing where there is none to be seen from here."""
    from hf_recipes.core.run_directory import RunDirectory

    run = RunDirectory(output)
    result = next((place for place in (run.adapter, run.model) if place.is_dir()), None)
    if result is None:
        return
    place = shlex.quote(str(output))
    merges = module == "hf_recipes.sft" and result == run.adapter
    lines = [f"hf-recipes merge {place} --to bf16" if merges else f"hf-recipes report {place}"]
    if module == "hf_recipes.sft" and recipe.get("evaluation"):
        lines.insert(0, f"hf-recipes evaluate {place}")
    print(f"Result: {result}. Next: {' and '.join(lines)}")


def _tell_foreign_evaluation(recipe: Recipe) -> None:
    """A copied recipe whose data were changed and whose evaluation was not compares models on another task."""
    from hf_recipes.core.log import logger
    from hf_recipes.recipe.shipped import recipes_root

    def shipped(path: object) -> bool:
        return recipes_root().resolve() in Path(str(path)).resolve().parents

    domain = (recipe.get("evaluation") or {}).get("domain")
    domain = domain.get("path") if isinstance(domain, dict) else domain
    own = [source for source in recipe.values["datasets"] if source.get("role", "domain") == "domain"]
    if domain and shipped(domain) and own and not any(shipped(source["path"]) for source in own):
        logger.warning(
            "evaluation: its rows (%s) are those of the shipped recipe, your data are not: name rows of your own task "
            "in evaluation.domain, or leave evaluation out.",
            Path(str(domain)).name,
        )


def _free_output(recipe: Recipe, machine: Machine) -> Path:
    """The run directory, in which nobody else writes. What the first of several machines does there is its own: the
    others look only for a run that is finished, which they must not wait for."""
    from hf_recipes.checkpoints.lock import release_lock, take_lock
    from hf_recipes.core.errors import UserError
    from hf_recipes.core.run_directory import list_checkpoints
    from hf_recipes.training.output import choose_output
    from hf_recipes.training.requeue import resume_request

    if machine.count > 1 and not recipe.get("output_dir"):
        raise UserError("Several machines need one run directory: give --output_dir, the same on all of them.")
    if machine.rank > 0 and resume_request(recipe) != "auto":
        return Path(recipe.values["output_dir"])
    output = choose_output(recipe)
    if machine.rank > 0:
        return output
    if recipe.get("resume_from_checkpoint") in ("last", "true") and not list_checkpoints(output):
        raise UserError(f"resume_from_checkpoint: '{output}' holds no checkpoint: start without it.")
    take_lock(output)  # as the ranks will; to be said before anything is touched
    release_lock(output)
    return Path(output)


def _choose(module: str, recipe: Recipe, ranks: int, machine: Machine) -> AutoChoice:
    """The recipe's strategy; the planner's where it leaves it open. The planner knows language models alone, and no
    network between machines."""
    from hf_recipes.training.auto_strategy import AutoChoice, choose_here

    strategy = recipe.get("strategy", "auto")
    is_open = strategy == "auto" and module == "hf_recipes.sft" and machine.count == 1
    return choose_here(recipe, ranks) if is_open else AutoChoice(strategy)


def _ranks(options: argparse.Namespace, recipe: Recipe, machine: Machine) -> int:
    """Of this machine: by the command line; else its share of what the recipe or accelerate's config file says of all;
    else one."""
    from hf_recipes.core.errors import UserError
    from hf_recipes.training.room_for_ranks import check_room_for_ranks
    from hf_recipes.training.strategy_file import configured_processes

    ranks = options.num_processes
    if ranks is None:
        of_all = recipe.get("num_processes")
        if of_all is None and options.config_file:
            of_all = configured_processes(options.config_file)
        of_all = machine.count if of_all is None else int(of_all)
        if of_all % machine.count:
            raise UserError(f"num_processes: {of_all} ranks do not stand evenly on {machine.count} machines.")
        ranks = of_all // machine.count
    if ranks < 1:
        raise UserError(f"--num_processes: {ranks} is not a number of processes: give 1 or more.")
    check_room_for_ranks(int(ranks))
    return int(ranks)


def _without(keys: list[str], name: str) -> list[str]:
    """Drop ``--name value`` or ``--name=value`` from command-line keys."""
    kept: list[str] = []
    skipping = False
    for key in keys:
        if key.startswith("--"):
            skipping = key == f"--{name}" or key.startswith(f"--{name}=")
        if not skipping:
            kept.append(key)
    return kept
