"""Axolotl's YAML (axolotl/utils/schemas/*.py for names and defaults, core/builders/base.py for what they do)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.convert.answers import (
    Config,
    is_off,
)
from hf_recipes.convert.axolotl_data import is_overlong_split
from hf_recipes.convert.axolotl_model import MODEL_RULES, method_of
from hf_recipes.convert.axolotl_told import FAMILIES, TOLD
from hf_recipes.convert.axolotl_training import TRAINING_RULES
from hf_recipes.convert.engine import Default, Tool
from hf_recipes.convert.trainer_keys import (
    bf16_weights,
    no_evaluation,
)
from hf_recipes.core.errors import UserError

_PREFERENCES = {
    "rl": "preferences or rewards",
    "reward_model": "a reward model",
    "process_reward_model": "a reward model",
}


def _refuse(config: Config) -> None:
    for key, what in _PREFERENCES.items():
        if config.get(key) and not is_off(config.get(key)):
            raise UserError(
                f"{config.path}: '{key}: {config.get(key)}' trains on {what}, and this tool trains on answers alone: "
                "there is no recipe for it."
            )


def _defaults(config: Config, recipe: Mapping[str, Any]) -> Sequence[Default]:
    told = [
        Default({"method": "full"}, "without an adapter Axolotl trains every weight; ours trains LoRA"),
        Default({"max_length": 512}, "Axolotl's sequence_len; ours is 1024"),
        Default({"num_train_epochs": 1.0}, "Axolotl's num_epochs; ours is 3"),
        Default({"per_device_train_batch_size": 1}, "Axolotl's micro_batch_size; ours is 8"),
        Default({"lr_scheduler_type": "cosine"}, "Axolotl's cosine goes to zero; ours to a tenth of the peak"),
        *no_evaluation("Axolotl", config, recipe),
        *bf16_weights("Axolotl", {"method": method_of(config), **recipe}),
    ]
    if method_of(config) != "full":
        told.append(Default({"lora_dropout": 0.0}, "Axolotl's lora_dropout; ours is 0.05"))
    if is_overlong_split(config):
        told.append(Default({"overlong": "split"}, "Axolotl cuts text into pieces of sequence_len; ours cuts it once"))
    if "warmup_steps" not in recipe:
        told.append(
            Default({}, "warm-up is 3 % of the run, as here, but never more than 100 steps there: set warmup_steps")
        )
    told.append(
        Default({}, "on several processes Axolotl averages the loss by process; here each token of a step weighs alike")
    )
    return told


AXOLOTL = Tool(
    name="axolotl",
    title="Axolotl",
    rules={**TOLD, **MODEL_RULES, **TRAINING_RULES},
    telling=frozenset(
        ("base_model", "micro_batch_size", "sequence_len", "num_epochs", "val_set_size", "adapter", "sample_packing",
         "lora_target_linear", "dataset_prepared_path", "train_on_inputs", "pad_to_sequence_len", "evals_per_epoch",
         "saves_per_epoch", "special_tokens", "wandb_project", "optimizer", "lr_scheduler")
    ),
    defaults=_defaults,
    refuse=_refuse,
    families=FAMILIES,
)  # fmt: skip
