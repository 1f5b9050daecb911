"""Text classification with the plain `Trainer`: the same rooms, another head."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DataCollatorWithPadding, EvalPrediction, Trainer, set_seed

from hf_recipes.checkpoints.lock import only_writer
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import barrier, is_main
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.classification import ClassificationData, label_table, prepare_classification
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.adapter_start import optimizer_of_run, start_adapter_of_run
from hf_recipes.training.arguments import total_steps, write_out_steps
from hf_recipes.training.environment import check_world_size, use_all_cores
from hf_recipes.training.finish import train_and_save
from hf_recipes.training.fit import fit_in_memory
from hf_recipes.training.model import build_for_method
from hf_recipes.training.output import recorded_end, write_last_report
from hf_recipes.training.resume import check_resume, find_resume
from hf_recipes.training.rows import TrainingRows, longest_row
from hf_recipes.training.setup import Setup, set_up, start_checkpoint_keeper, tell_setup, write_run_record
from hf_recipes.training.watching import recipe_watchers, watch_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD_CHECK_ROWS = 64
# An untrained head should be undecided, at a loss of ln(classes); one and a half times that is strong random opinion.
MAX_HEAD_LOSS_RATIO = 1.5


def train_classifier(recipe: Recipe) -> RunDirectory:
    """Train a text classifier by a recipe and leave a run directory; to be called on every rank.

    Raises:
        UserError: wrong use, on all ranks alike.
        CheckFailed: one label holds nearly all rows, or a watcher stopped the run.
    """
    check_classification(recipe)
    use_all_cores()
    # Accuracy needs the logits of the eval rows: a few numbers a row here, unlike a language model's.
    setup = set_up(recipe.with_values(prediction_loss_only=False))
    with only_writer(setup.run.path), recorded_end(setup.run.path) as end:
        check_world_size(setup.ours.num_processes, setup.arguments.world_size)
        watchers = recipe_watchers(setup)
        resume = find_resume(setup)
        set_seed(setup.arguments.seed)
        source, tokenizer = setup.load_tokenizer()
        data = _prepare(setup, tokenizer)
        tell_setup(setup, source, label_table(data.report))
        model = _build(setup, source, tokenizer, data.labels, resume)
        rows, collator = TrainingRows(data.train, longest_row(data.train, recipe)), _Collator(tokenizer)
        start_adapter_of_run(setup, model, rows, collator, resume)
        check_resume(resume, model, total_steps(len(data.train), setup.arguments))
        if resume is not None:
            write_out_steps(setup.arguments, total_steps(len(data.train), setup.arguments))
        fitted = fit_in_memory(model, recipe, setup.arguments, setup.precision, rows)
        write_run_record(setup, source, model, task="sequence_classification", labels=data.labels, fitted=fitted)
        keeper = start_checkpoint_keeper(setup, source)
        trainer = Trainer(
            model=model,
            args=setup.arguments,
            data_collator=collator,
            train_dataset=data.train,
            eval_dataset=data.eval,
            processing_class=tokenizer,
            compute_metrics=accuracy,
            callbacks=[*watchers, keeper],
            optimizers=(optimizer_of_run(setup, model), None),
        )
        watch_with(trainer, setup)
        check_head(trainer, len(data.labels))
        train_and_save(trainer, setup, source, resume, end)
    if is_main():
        write_last_report(setup.run)
    barrier()
    return setup.run


# Keys about text that is generated: a classifier's rows are one text and one label each.
_NOT_FOR_CLASSIFIERS = (
    "assistant_only_loss",
    "clean",
    "data_cache_dir",
    "general_share",
    "loss_kernel",
    "mask_history",
    "max_repeats",
    "overfit_check",
    "overlong",
    "packing",
    "share_unit",
    "streaming",
)


def check_classification(recipe: Recipe) -> None:
    """Tell which given keys have no effect on a classifier.

    Raises:
        UserError: a method or a start that cannot train one.
    """
    if recipe.get("method") == "prefix":
        raise UserError("method: prefix trains language models only, a classifier takes no prefix: use method: lora.")
    if recipe.get("init_lora_weights") == "eva":
        raise UserError("init_lora_weights: eva reads the tokens a language model is trained on: leave it out.")
    idle = [key for key in _NOT_FOR_CLASSIFIERS if key in recipe.given and recipe.values[key]]
    if idle:
        logger.warning("Without effect on a classifier: %s.", ", ".join(idle))


def _prepare(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> ClassificationData:
    recipe = setup.recipe
    data = prepare_classification(
        recipe.values["datasets"],
        tokenizer,
        max_length=recipe.values.get("max_length", 1024),
        eval_share=recipe.get("eval_share", 0.1),
        bad_rows=recipe.get("bad_rows", "drop"),
        max_label_share=setup.ours.max_label_share,
        seed=setup.arguments.seed,
    )
    if data.eval is None:
        setup.arguments.eval_strategy = "no"
    if is_main():
        setup.run.write(setup.run.data_json, data.report)
    return data


def _build(
    setup: Setup, source: Any, tokenizer: PreTrainedTokenizerBase, labels: list[str], resume: Path | None
) -> Any:
    model = build_for_method(
        setup,
        source,
        tokenizer,
        task="sequence_classification",
        resume=resume,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model.config.pad_token_id = tokenizer.pad_token_id  # the head reads the last token that is not padding
    return model


class _Collator:
    """Pads to the longest text of a batch, and leaves out the columns that say where a row came from."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._pad = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        kept = [{key: feature[key] for key in ("input_ids", "labels")} for feature in features]
        return dict(self._pad(kept))


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Share of rows whose highest logit is the label's; `predictions` is ``(rows, classes)``."""
    return {"accuracy": float(np.mean(np.argmax(prediction.predictions, axis=-1) == prediction.label_ids))}


def check_head(trainer: Trainer, classes: int) -> float:
    """Compare the untrained head's loss with that of an undecided one, ``ln(classes)``; warn when it is far above.

    A badly initialised head makes the first steps undo its opinions, or locks the loss at a constant.

    Returns:
        The mean loss in nats over the first training rows.
    """
    model = trainer.model
    rows = [trainer.train_dataset[index] for index in range(min(HEAD_CHECK_ROWS, len(trainer.train_dataset)))]
    losses = []
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():  # over a 16-bit base the head is in fp32
        for start in range(0, len(rows), 8):
            batch = trainer.data_collator(rows[start : start + 8])
            inputs = {key: value.to(trainer.args.device) for key, value in batch.items()}
            losses.append(model(**inputs).loss.item())
    loss, undecided = sum(losses) / len(losses), math.log(classes)
    if not loss <= MAX_HEAD_LOSS_RATIO * undecided:
        logger.warning(
            "The untrained head starts at a loss of %.2f, an undecided one at ln %d = %.2f: its initialisation is too "
            "large; lower the model's initializer_range, or warm up longer (warmup_steps).",
            loss,
            classes,
            undecided,
        )
    return loss
