"""The kinds of values that a merge reads from JSON files it did not write, checked where each file is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError

_Kind = tuple[Callable[[Any], bool], str]


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_feedforward(value: Any) -> bool:
    return _is_texts(value) or (_is_text(value) and _compiles(value))


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_patterns(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(number) and _compiles(key) for key, number in value.items())


def _compiles(pattern: str) -> bool:
    try:
        re.compile(f"({pattern})")
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _is_id_or_ids(value: Any) -> bool:
    return _is_whole(value) or _is_ids(value)


def _is_rows(value: Any) -> bool:
    return _is_ids(value) or (isinstance(value, dict) and all(map(_is_ids, value.values())))


_MAP, _TEXT, _IDS = (_is_map, "a map"), (_is_text, "a text"), (_is_ids, "a list of token ids")
_ENDS = (_is_id_or_ids, "a token id or a list of them")
_ADAPTER: Mapping[str, _Kind] = {
    "peft_type": _TEXT,
    "task_type": _TEXT,
    "base_model_name_or_path": _TEXT,
    "revision": _TEXT,
}
# Others of PEFT's methods use these names for other things, and only these two methods' settings are read here.
_LORA_AND_IA3: Mapping[str, _Kind] = {
    "r": (_is_number, "a number"),
    "lora_alpha": (_is_number, "a number"),
    "rank_pattern": (_is_patterns, "a map of patterns to numbers"),
    "alpha_pattern": (_is_patterns, "a map of patterns to numbers"),
    "modules_to_save": (_is_texts, "a list of names"),
    "target_parameters": (_is_texts, "a list of names"),
    "feedforward_modules": (_is_feedforward, "a list of names or a pattern"),
    "trainable_token_indices": (_is_rows, "a list of token ids, or one for each module"),
}
_RUN: Mapping[str, _Kind] = {
    "base_model": _MAP,
    "precision": _MAP,
    "recipe": _MAP,
    "end_of_turn_token_ids": _IDS,
    "base_model.name_or_path": _TEXT,
    "base_model.revision": _TEXT,
    "precision.dtype": _TEXT,
    "recipe.method": _TEXT,
    "recipe.bnb_4bit_quant_type": (("nf4", "fp4").__contains__, "nf4 or fp4"),
}
_BASE: Mapping[str, _Kind] = {
    "text_config": _MAP,
    "quantization_config": _MAP,
    "text_config.quantization_config": _MAP,
    "model_type": _TEXT,
    "vocab_size": (_is_whole, "a whole number"),
    "text_config.vocab_size": (_is_whole, "a whole number"),
    "eos_token_id": _ENDS,
}
_GENERATION: Mapping[str, _Kind] = {"eos_token_id": _ENDS}


def check_adapter_config(config: Mapping[str, Any], file: Path) -> None:
    """Raise `UserError` naming the first value of an ``adapter_config.json`` that is of another kind than PEFT writes;
    absent ones and null pass. `file` is for the sentence."""
    own = _LORA_AND_IA3 if config.get("peft_type") in ("LORA", "IA3") else {}
    _check(config, {**_ADAPTER, **own}, file, "save the adapter again")


def check_run(run: Mapping[str, Any], file: Path) -> None:
    """The same for run.json."""
    _check(run, _RUN, file, "restore it")


def check_base_config(config: Mapping[str, Any], file: Path) -> None:
    """The same for the config.json of a base."""
    _check(config, _BASE, file, "fetch it again")


def check_generation_config(config: Any, file: Path) -> None:
    """The same for a generation_config.json, which may be anything yet."""
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object: restore it.")
    _check(config, _GENERATION, file, "restore it")


def _check(content: Mapping[str, Any], kinds: Mapping[str, _Kind], file: Path, cure: str) -> None:
    """Outer keys come before inner ones in `kinds`, so that a map is known to be one when it is looked into."""
    for path, (fits, kind) in kinds.items():
        value: Any = content
        for key in path.split("."):
            value = value.get(key) if value is not None else None
        if value is not None and not fits(value):
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
            raise UserError(f"{file}: '{path}' is {shown}, not {kind}: {cure}.")
