"""The trainer's arguments: the recipe's, with what this machine and the data room decide filled in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hf_recipes.core.data_parallel import data_parallel_ranks, set_degrees
from hf_recipes.models.precision import Hardware, Precision, choose_precision
from hf_recipes.plan.strategy.names import layout_of
from hf_recipes.recipe.resolve import Recipe, parse_recipe
from hf_recipes.training.launched import node_count
from hf_recipes.training.parallelism import save_model_only
from hf_recipes.training.strategy_file import recipe_sizes

if TYPE_CHECKING:
    from transformers import TrainingArguments
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments

# Read by the data and model rooms, never passed on: TRL prepares no data here, and refuses templates it does not know.
_NOT_FOR_THE_TRAINER = ("assistant_only_loss", "max_length", "chat_template_path", "packing", "eval_packing")


def recipe_precision(recipe: Recipe, hardware: Hardware) -> Precision:
    """The precision for a recipe on this hardware (see `choose_precision`)."""
    return choose_precision(
        recipe.get("method", "lora"),
        hardware,
        dtype=recipe.get("dtype"),
        bf16=recipe.values.get("bf16"),
        fp16=recipe.get("fp16", False),
    )


def build_arguments(
    recipe: Recipe, hardware: Hardware, precision: Precision
) -> tuple[SFTConfig, ModelConfig, RecipeArguments]:
    """Build the HF dataclasses for `SupervisedTrainer`. Joins the process group when a launcher started this process.

    Raises:
        UserError: a combination the dataclasses refuse.
    """
    values = {key: value for key, value in recipe.values.items() if key not in _NOT_FOR_THE_TRAINER}
    values.update(
        bf16=precision.bf16,
        fp16=precision.fp16,
        dtype=precision.dtype,
        use_cpu=hardware.device == "cpu",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    # Every trained parameter takes part in every step; the search for unused ones costs time, and would not see the
    # head, which the loss uses outside the model's forward.
    values.setdefault("ddp_find_unused_parameters", False)
    values.setdefault("activation_checkpointing", False)  # on is TRL's default; see `fit_in_memory`
    if recipe.get("eval_share", 0.1) == 0 and not (recipe.get("evaluation") or {}).get("during_training"):
        values["eval_strategy"] = "no"
    values.setdefault("output_dir", "runs")
    arguments, model_settings, ours = parse_recipe(Recipe(recipe.name, values, recipe.given))
    if ours.strategy in ("tp", "cp"):
        nodes = node_count(int(arguments.world_size))
        layout = layout_of(ours.strategy, int(arguments.world_size), nodes, recipe_sizes(ours))
        set_degrees(arguments, layout.tensor, layout.context)
    if ours.strategy == "tp":
        save_model_only(arguments)
    return arguments, model_settings, ours


def global_batch_size(arguments: TrainingArguments) -> int:
    """Rows that meet in one optimizer step: micro-batch × accumulation × data-parallel ranks."""
    rows = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    return int(rows * data_parallel_ranks(arguments))


def order_seed(arguments: TrainingArguments) -> int:
    """The seed that the order of the rows follows from."""
    return int(arguments.seed if arguments.data_seed is None else arguments.data_seed)


def write_out_steps(arguments: SFTConfig, steps: int) -> None:
    """Turn shares of a run into numbers of steps, as the Trainer does, before it compares them with a checkpoint's and
    warns of a change that is none.

    Args:
        arguments: changed in place.
        steps: of the whole run.
    """
    for name in ("logging_steps", "eval_steps", "save_steps"):
        share = getattr(arguments, name)
        if share is not None and 0 < share < 1:
            setattr(arguments, name, math.ceil(steps * share))


def total_steps(rows: int, arguments: SFTConfig) -> int:
    """Optimizer steps of the run, counted as the Trainer counts them (short last batch included, per epoch)."""
    if arguments.max_steps > 0:
        return arguments.max_steps
    whole = math.floor if arguments.dataloader_drop_last else math.ceil
    batches = whole(rows / data_parallel_ranks(arguments) / arguments.per_device_train_batch_size)
    updates = math.ceil(batches / arguments.gradient_accumulation_steps)
    return max(1, math.ceil(updates * arguments.num_train_epochs))
