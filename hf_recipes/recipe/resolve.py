"""From a recipe file and command-line keys to resolved, checked values, and on to the HF dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import expanded, json_safe, short_digest
from hf_recipes.core.secrets import secret_places
from hf_recipes.recipe.defaults import recipe_defaults
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.keys import KEYS_OF_METHODS
from hf_recipes.recipe.overlay import apply_overrides, parse_overrides
from hf_recipes.recipe.shipped import find_recipe, recipes_root
from hf_recipes.recipe.validate import check_keys
from hf_recipes.recipe.yaml_lines import load_yaml

if TYPE_CHECKING:
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments

# Both spellings are understood; transformers 6 drops the left ones.
_RENAMED_KEYS = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
_EVALUATION_SOURCES = ("domain", "general")  # a file, or a mapping as in `datasets:`
_EVALUATION_FILES = (*_EVALUATION_SOURCES, "schema", "choices", "instructions")


# The home directory is written out in them by whoever reads the recipe; other paths are looked for where they are read.
_OWN_PATHS = ("output_dir", "resume_from_checkpoint", "data_cache_dir")


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    `values` holds every key given plus our defaults; `given` names the keys the user wrote; `name` is the file's stem.
    """

    name: str
    values: dict[str, Any]
    given: frozenset[str]

    def get(self, key: str, default: Any = None) -> Any:
        """A key's value, or `default` where it is absent or empty."""
        value = self.values.get(key)
        return default if value is None else value

    def with_values(self, **values: Any) -> Recipe:
        """A copy with keys set from inside (they do not count as given)."""
        return replace(self, values={**self.values, **values})

    def idle_keys(self) -> list[str]:
        """Keys that were given and have no effect with the recipe's method."""
        method = self.get("method", "lora")
        given = [key for key in self.values if key in self.given and self.values[key]]
        return [key for key in given if method not in KEYS_OF_METHODS.get(key, (method,))]

    def fingerprint(self) -> str:
        """A short hash of all values but where the output goes: two runs with the same one were set up alike."""
        settings = {key: value for key, value in self.values.items() if key not in ("output_dir", "run_name")}
        return short_digest(json.dumps(json_safe(settings), sort_keys=True))


def load_recipe(config: str, arguments: Sequence[str] = ()) -> Recipe:
    """Load the recipe `config` (path or shipped name), lay command-line `arguments` over it, and check every key.

    Raises:
        UserError: with the file and line, or the command-line key, that is wrong.
    """
    path = find_recipe(config)
    values, lines = load_yaml(path)
    overrides = parse_overrides(arguments)
    return _resolve(path, apply_overrides(values, overrides), _place_finder(path, lines, overrides))


def recipe_of_keys(arguments: Sequence[str], name: str) -> Recipe:
    """A recipe of command-line keys alone, for what needs no data.

    Raises:
        UserError: a key is wrong, or no model is named.
    """
    overrides = parse_overrides(arguments)
    values = apply_overrides({}, overrides)
    values.setdefault("datasets", [])
    return _resolve(Path(name), values, lambda key: f"--{key}", needs_data=False)


def _resolve(path: Path, values: dict[str, Any], where: Callable[[str], str], *, needs_data: bool = True) -> Recipe:
    _refuse_secrets(values, where)
    checked = check_keys(values, load_key_table(), where)
    for old, new in _RENAMED_KEYS.items():
        if old in checked and checked.setdefault(new, checked[old]) != checked.pop(old):
            raise UserError(f"{where(old)}: '{old}' and '{new}' are the same key, with two values: keep one.")
    checked |= {key: str(expanded(checked[key])) for key in _OWN_PATHS if str(checked.get(key)).startswith("~")}
    merged = {**recipe_defaults(checked.get("method", "lora")), **checked}
    if merged.get("lora_target_parameters") and "lora_dropout" not in checked:
        merged["lora_dropout"] = 0.0  # PEFT puts LoRA on parameters without dropout only
    if "lr_scheduler_type" in checked and "lr_scheduler_kwargs" not in checked:
        merged.pop("lr_scheduler_kwargs")  # ours belongs to our schedule only
    _require(merged, path, needs_data=needs_data)
    _check_ranges(merged, where)
    _check_places(merged, where)
    merged["datasets"] = [_located_source(source, path) for source in merged["datasets"]]
    if evaluation := merged.get("evaluation"):
        merged["evaluation"] = _located_evaluation(evaluation, path, where)
    return Recipe(path.stem, merged, frozenset(checked))


def _refuse_secrets(values: dict[str, Any], where: Callable[[str], str]) -> None:
    """A recipe is copied into run.json, sweeps, job files and cards; the sentence does not repeat the secret."""
    for place in secret_places(values):
        raise UserError(
            f"{where(place.split('.')[0])}: '{place}' holds what looks like an access token or password, and every run "
            "keeps its recipe: give it by the environment (HF_TOKEN, WANDB_API_KEY; in a command as $NAME)."
        )


def _located_evaluation(evaluation: dict[str, Any], recipe: Path, where: Callable[[str], str]) -> dict[str, Any]:
    """Every file that an `evaluation:` names, found as data files are; the rest is checked where it is used."""
    found: dict[str, Any] = {}
    for key in _EVALUATION_FILES:
        value = evaluation.get(key)
        if isinstance(value, dict) and key in _EVALUATION_SOURCES:
            found[key] = _located_source(value, recipe)
        elif value is not None and not isinstance(value, str):
            raise UserError(f"{where('evaluation')}: evaluation.{key} must name a file, not {value!r}.")
        elif value:
            found[key] = _beside_recipe(value, recipe)
    tasks, function, form = (evaluation.get(key) for key in ("tasks", "function", "format"))
    if isinstance(tasks, list):
        found["tasks"] = [_beside_recipe(each, recipe) if isinstance(each, str) else each for each in tasks]
    if isinstance(function, str) and ":" in function:
        file, name = function.rsplit(":", 1)
        found["function"] = f"{_beside_recipe(file, recipe)}:{name}"
    if isinstance(form, dict) and isinstance(form.get("schema"), str):
        found["format"] = {**form, "schema": _beside_recipe(form["schema"], recipe)}
    return {**evaluation, **found}


def _located_source(source: Any, recipe: Path) -> Any:
    """A bare name stands for ``{path: name}``; whatever else is wrong is told by the data room."""
    if isinstance(source, str):
        source = {"path": source}
    if isinstance(source, dict) and isinstance(source.get("path"), str):
        return {**source, "path": _beside_recipe(source["path"], recipe)}
    return source


def _place_finder(path: Path, lines: dict[str, int], overrides: dict[str, Any]) -> Callable[[str], str]:
    on_command_line = {dotted.split(".")[0] for dotted in overrides}

    def where(key: str) -> str:
        return f"--{key}" if key in on_command_line else f"{path} line {lines[key]}" if key in lines else str(path)

    return where


def _require(values: dict[str, Any], path: Path, *, needs_data: bool) -> None:
    if not values.get("model_name_or_path"):
        raise UserError(f"{path}: 'model_name_or_path' is missing: name a model directory or a Hub model.")
    if needs_data and not values.get("datasets"):
        raise UserError(f"{path}: 'datasets' is missing: give at least one `- path: FILE_OR_HUB_NAME`.")


_RANGES: dict[str, tuple[float, float]] = {
    "general_share": (0.0, 0.9),
    "eval_share": (0.0, 0.9),
    "learning_rate": (0.0, 100.0),
    "num_train_epochs": (0.0, 1e6),
    "lora_r": (1, 4096),
    "lora_alpha": (1, 1e6),
    "lora_dropout": (0.0, 0.99),
    "per_device_train_batch_size": (1, 1e6),
    "per_device_eval_batch_size": (1, 1e6),
    "gradient_accumulation_steps": (1, 1e6),
    "max_length": (8, 1e8),
    "num_processes": (1, 1e6),
    "tensor_parallel_size": (1, 1e4),
    "context_parallel_size": (1, 1e4),
    "pipeline_parallel_size": (1, 1e4),
    "dataset_num_proc": (1, 1e4),
    "max_repeats": (1, 1e6),
    "overfit_check": (0, 1e6),
    "adapter_size": (1, 1e6),
    "adapter_dropout": (0.0, 0.99),
    "num_virtual_tokens": (1, 1e5),
    "loraplus_lr_ratio": (1, 1e4),
    "seed": (0, 2**32 - 1),
    "data_seed": (0, 2**32 - 1),
    "adam_beta1": (0.0, 1 - 1e-9),
    "adam_beta2": (0.0, 1 - 1e-9),
    "adam_epsilon": (0.0, 1.0),
    "weight_decay": (0.0, 100.0),
    "max_grad_norm": (0.0, 1e12),
    "neftune_noise_alpha": (0.0, 1e6),
    "dataloader_num_workers": (0, 1e4),
    "logging_steps": (0.0, 1e12),
    "save_steps": (0.0, 1e12),
    "eval_steps": (0.0, 1e12),
}
_FILES = ("deepspeed", "accelerator_config", "fsdp_config")


def _check_ranges(values: dict[str, Any], where: Callable[[str], str]) -> None:
    for key, (low, high) in _RANGES.items():
        value = values.get(key)
        if value is not None and not low <= value <= high:
            raise UserError(f"{where(key)}: '{key}' is {value}: give a value from {low:g} to {high:g}.")


def _check_places(values: dict[str, Any], where: Callable[[str], str]) -> None:
    for key in _FILES:
        if isinstance(value := values.get(key), str) and value.endswith(".json") and not Path(value).is_file():
            raise UserError(f"{where(key)}: {key} names '{value}', which does not exist: correct the path.")
    output = str(values.get("output_dir") or "")
    if any(character in output for character in "\n\r\0"):
        what = f"output_dir: {output!r} holds a line break or a null byte"
        raise UserError(f"{where('output_dir')}: {what}: name it without.")


def _beside_recipe(name: str, recipe: Path) -> str:
    """A relative data path means the working directory first, then the recipe's own, then the shipped recipes'; what is
    in none of them stays as it is (a Hub name, a glob, or an error told where the file is read)."""
    if name.startswith("~"):
        return str(expanded(name))
    if Path(name).is_absolute() or Path(name).exists():
        return name
    beside = (folder / name for folder in (recipe.parent, recipes_root()))
    return next((str(path.resolve()) for path in beside if path.exists()), name)


def parse_recipe(recipe: Recipe) -> tuple[SFTConfig, ModelConfig, RecipeArguments]:
    """Build the HF dataclasses. Imports trl; constructing `SFTConfig` joins the process group under a launcher.

    Raises:
        UserError: a combination the dataclasses refuse, in their words.
    """
    from transformers import HfArgumentParser
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments

    parser = HfArgumentParser([SFTConfig, ModelConfig, RecipeArguments])
    values = {key: list(value) if isinstance(value, list) else value for key, value in recipe.values.items()}
    try:
        sft, model, ours = parser.parse_dict(values)
    except (ValueError, TypeError) as error:
        raise UserError(f"Recipe '{recipe.name}': {' '.join(str(error).split())}") from None
    return sft, model, ours
