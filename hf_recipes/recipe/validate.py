"""Names, types and choices of recipe keys, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.recipe.key_table import KeySpec

_TRUE, _FALSE = ("true", "on", "yes"), ("false", "off", "no")
_DTYPE_KEYS = ("dtype", "bnb_4bit_quant_storage")

# SFTConfig and ModelConfig keys that would do nothing here, or undo what the recipe's own keys decide.
REFUSED_KEYS: dict[str, str] = {
    "use_peft": "write `method: lora` or `method: full`",
    "load_in_4bit": "write `method: qlora`",
    "use_dora": "write `method: dora`",
    "dataset_kwargs": "data is prepared by `datasets:` alone",
    "dataset_text_field": "name the column in `datasets:` as `columns: {text: NAME}`",
    "completion_only_loss": "use `assistant_only_loss`, which covers prompt/completion data too",
    "shuffle_dataset": "the training set is always shuffled by `seed`",
    "packing_strategy": "whole samples are packed, each into the fullest row that has room for it",
    "pad_to_multiple_of": "rows are padded to the longest of their batch, and further only where shards ask for it",
    "truncation_mode": "write `overlong: drop` or `overlong: shorten_prompt`",
    "model_init_kwargs": "write the model's keys (`dtype`, `attn_implementation`, `model_revision`) themselves",
    "lora_task_type": "the task decides it",
    "remove_unused_columns": "batches hold only what the model takes",
    "pad_token": "padding is masked by position, any pad token will do",
    "eos_token": "the token that ends a turn is found from the chat template",
    "hub_token": "a run keeps its recipe: log in with `hf auth login`, or set HF_TOKEN",
}
# Keys of one source, which newcomers write beside the recipe's own.
OF_A_SOURCE = (
    "path",
    "split",
    "data_files",
    "columns",
    "role",
    "format",
    "weight",
    "group_by",
    "stratify_by",
    "balance_by",
)
# Keys that may be `auto`: decided at the start of the run, by measuring, as if the key were absent.
AUTO_KEYS = ("activation_checkpointing", "gradient_checkpointing")
# Keys whose default is the only supported value for now.
UNSUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "eval_packing": (False, None),
    "padding_free": (False, None),
    "loss_type": ("nll",),
    "label_smoothing_factor": (0, 0.0),
    "use_liger_kernel": (False, None),
}


def check_keys(values: Mapping[str, Any], table: Mapping[str, KeySpec], where: Callable[[str], str]) -> dict[str, Any]:
    """Return `values` with each value in its key's type.

    Args:
        values: Flat recipe keys.
        table: The keys there are.
        where: Gives the place a key was written at, for messages.

    Raises:
        UserError: an unknown key (with the nearest one), a value of the wrong type or not among the choices, or a key
            that has no effect here.
    """
    return {
        key: _check(key, value, table, where(key))
        for key, value in values.items()
        if not (key in AUTO_KEYS and value == "auto")
    }


def _meant(key: str, table: Mapping[str, KeySpec]) -> str:
    """Where an unknown key may belong: inside another, as an entry of it, or one written nearly so."""
    outer, _, inner = key.partition(".")
    if inner and outer in table:
        return f" (in a file write {outer}: {{{inner.replace('.', ': {')}: …}}{'}' * inner.count('.')})"
    if key in OF_A_SOURCE:
        return f" (it belongs to an entry of datasets: [{{path: …, {key}: …}}])"
    return nearest(key, table)


def _check(key: str, value: Any, table: Mapping[str, KeySpec], place: str) -> Any:
    if key in REFUSED_KEYS:
        raise UserError(f"{place}: '{key}' is not used here: {REFUSED_KEYS[key]}.")
    if key not in table:
        raise UserError(
            f"{place}: unknown key '{key}'{_meant(key, table)}; `hf-recipes sft --help-all` lists them all."
        )
    if key == "resume_from_checkpoint" and isinstance(value, bool):
        value = "last" if value else None
    if key in _DTYPE_KEYS and value is not None:
        value = canonical_dtype_name(value, f"{place}: {key}")
    coerced = coerce(value, table[key], place)
    if key in UNSUPPORTED_VALUES and coerced not in UNSUPPORTED_VALUES[key]:
        raise UserError(f"{place}: '{key}: {value}' is not supported: leave the key out.")
    return coerced


def coerce(value: Any, spec: KeySpec, place: str) -> Any:
    """Bring `value` into one of the kinds `spec` allows, strictest first; raises `UserError` when none fits."""
    if value is None:
        if "null" in spec.kinds or spec.default is None:
            return None
        raise UserError(f"{place}: '{spec.name}' is empty: give {_wanted(spec)}.")
    if spec.choices and "bool" not in spec.kinds:
        return _choice(value, spec, place)
    for kind in ("bool", "int", "float", "dict", "str", "list"):
        if kind in spec.kinds:
            fitted = _FITTERS[kind](value)
            if fitted is not None:
                return fitted
    raise UserError(f"{place}: '{spec.name}' is {value!r}: give {_wanted(spec)}.")


def _choice(value: Any, spec: KeySpec, place: str) -> str:
    choices = spec.choices or ()
    if value is False:  # `off` and false mean the same
        value = next((word for word in _FALSE if word in choices), value)
    if str(value) not in choices:
        options = f"one of {', '.join(choices)}" if len(choices) <= 12 else f"one of {len(choices)} names (see --help)"
        raise UserError(f"{place}: '{spec.name}' is {value!r}{nearest(str(value), choices)}: give {options}.")
    return str(value)


def _fit_bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else None
    return True if word in _TRUE else False if word in _FALSE else None


def _fit_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _fit_float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _fit_str(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _fit_list(value: Any) -> list[Any] | None:
    if isinstance(value, str):  # `lora_target_modules: all-linear` is one name
        return [value]
    return value if isinstance(value, list) else None


_FITTERS: dict[str, Callable[[Any], Any]] = {
    "bool": _fit_bool,
    "int": _fit_int,
    "float": _fit_float,
    "list": _fit_list,
    "dict": lambda value: value if isinstance(value, dict) else None,
    "str": _fit_str,
}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list",
    "dict": "a mapping of keys",
    "str": "a text",
}


def _wanted(spec: KeySpec) -> str:
    auto = " or auto" if spec.name in AUTO_KEYS else ""
    return " or ".join(_WORDS[kind] for kind in spec.kinds if kind in _WORDS) + auto
