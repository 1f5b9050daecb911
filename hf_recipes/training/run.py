"""A whole fine-tuning run: the rooms composed, from a recipe to a verified result. Serves sft and quickstart."""

from __future__ import annotations

from hf_recipes.checkpoints.lock import only_writer
from hf_recipes.core.ranks import barrier, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.build_run import build_run
from hf_recipes.training.classifier_recipe import check_no_classifier
from hf_recipes.training.environment import use_all_cores
from hf_recipes.training.finish import train_and_save
from hf_recipes.training.output import recorded_end, write_last_report
from hf_recipes.training.overfit.before_run import check_before_run, tell_left_out
from hf_recipes.training.plan_check import training_pace
from hf_recipes.training.run_data import write_data_report
from hf_recipes.training.setup import set_up


def train(recipe: Recipe) -> RunDirectory:
    """Train a recipe and leave a run directory with its result, verified; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
        CheckFailed: a watcher stopped the run, or a checkpoint did not verify.
    """
    check_no_classifier(recipe, "sft")
    if recipe.get("strategy") == "pp":  # no Trainer: the pipeline has a loop of its own
        from hf_recipes.training import pipelined

        if recipe.get("overfit_check", True):
            tell_left_out("strategy: pp")
        return pipelined.train(recipe)
    use_all_cores()
    setup = set_up(recipe)
    with only_writer(setup.run.path), recorded_end(setup.run.path) as end:
        built = build_run(setup)
        check_before_run(built)
        train_and_save(built.trainer, setup, built.source, built.resume, end)
        built.plan.add_measured(*training_pace(built.trainer))
        write_data_report(setup, built.data)  # once more: a stream is counted while it is read
    if is_main():
        write_last_report(setup.run)
    barrier()
    return setup.run
