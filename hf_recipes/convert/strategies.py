"""DeepSpeed and FSDP settings of other tools as our `strategy`, by what they shard and where they put it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hf_recipes.convert.answers import Answer, Config, is_nothing, is_off, is_on, none, same, taken

_NOTE = "batch, precision and clipping come from the recipe's own keys"
# Nothing is shared out among one, and DeepSpeed or FSDP costs time there; offloads help one device too.
_SHARED_OUT = ("zero1", "zero2", "zero3", "fsdp")
_ON_ONE = "on one device write strategy: single"

# Keys of the tools that cut rows, and that cut matrices, over processes; each is a strategy by itself.
_CUT_ROWS = ("context_parallel_size", "sequence_parallel_degree", "sequence_parallel_size")
_CUT = (*_CUT_ROWS, "tensor_parallel_size")
_ONE = "a recipe has one strategy, and rows or matrices are cut already; weights are whole, or cut by tp"


def rows_are_cut(config: Config) -> bool:
    """Whether the file asks for context parallelism."""
    return any(_above_one(config.get(key)) for key in _CUT_ROWS)


def _is_cut(config: Config) -> bool:
    return any(_above_one(config.get(key)) for key in _CUT)


def _above_one(value: Any) -> bool:
    return str(value).isdigit() and int(value) > 1


def deepspeed(value: Any, config: Config) -> Answer:
    """A DeepSpeed configuration, written out, as a file or as a preset's name, as `strategy`."""
    if is_nothing(value):
        return same("off there too")
    if _is_cut(config):
        return none(_ONE)
    settings = value if isinstance(value, dict) else config.read(str(value))
    strategy = _by_settings(settings) if isinstance(settings, dict) else _by_name(str(value))
    if strategy is None:
        return none("its ZeRO stage is not to be seen: write strategy: zero1, zero2 or zero3, or use --config_file")
    is_file = str(value).endswith(".json")
    read = "by its name, as the file was not found; " if is_file and not isinstance(settings, dict) else ""
    if strategy == "ddp":
        return taken({"strategy": "ddp"}, f"{read}stage 0 shards nothing")
    own = [key for key in ("optimizer", "scheduler") if isinstance(settings, dict) and key in settings]
    note = f"{read}{_NOTE}" + (
        f"; its own {' and '.join(own)} are not taken over: see optim, lr_scheduler_type" if own else ""
    )
    return taken({"strategy": strategy}, _with_one(note, strategy))


def _with_one(note: str, strategy: str) -> str:
    """The note, and what to write on one device, where the strategy is of use on several only."""
    return f"{note}; {_ON_ONE}" if strategy in _SHARED_OUT else note


def _by_settings(settings: Mapping[str, Any]) -> str | None:
    zero = settings.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        return None
    optimizer = _is_off_device(zero, "offload_optimizer") or bool(zero.get("cpu_offload"))
    return _named(int(stage), optimizer, _is_off_device(zero, "offload_param"))


def _is_off_device(zero: Mapping[str, Any], key: str) -> bool:
    return (zero.get(key) or {}).get("device", "none") not in ("none", None)


def _by_name(name: str) -> str | None:
    """The stage from a file's or preset's name: ``ds_z3_offload_config.json``, ``zero3_bf16_cpuoffload_all.json``. At
    stage 3 those that the tools ship offload the weights."""
    stem = re.split(r"[/\\]", name.lower())[-1].removesuffix(".json")
    if not (found := re.search(r"(?:zero_?|stage_?|z)([0-3])", stem)):
        return None
    offload = "offload" in stem
    return _named(int(found[1]), optimizer=offload, weights=offload and found[1] == "3")


def _named(stage: int, optimizer: bool, weights: bool) -> str:
    if stage == 3:
        return "zero3_offload_all" if weights else "zero3_offload" if optimizer else "zero3"
    if stage == 2:
        return "zero2_offload" if optimizer else "zero2"
    return "zero1" if stage == 1 else "ddp"


def fsdp(value: Any, config: Config) -> Answer:
    """FSDP's options (a text or list such as ``full_shard auto_wrap offload``, a preset, or true) as `strategy`."""
    if is_nothing(value):
        return same("off there too")
    if _is_cut(config):
        return none(_ONE)
    if isinstance(value, dict):
        return fsdp_config(value, config)
    strategy = _fsdp_strategy(config)
    gathered = "weights are gathered anew; strategy: zero2 keeps them whole"
    note = gathered if "shard_grad_op" in _options(config) else "by FSDP2"
    return taken({"strategy": strategy}, _with_one(note, strategy))


def fsdp_config(value: Any, config: Config) -> Answer:
    """Each key of an `fsdp_config`, with and without its old prefix; written out or as a JSON file."""
    if is_nothing(value):
        return same("off there too")
    if _is_cut(config):
        return none(_ONE)
    settings = value if isinstance(value, dict) else config.read(str(value))
    if not isinstance(settings, dict):
        return none("the file was not found: write strategy: fsdp or fsdp_offload")
    strategy = _fsdp_strategy(config)
    parts = tuple((str(key), _part(str(key).removeprefix("fsdp_"), said, strategy)) for key, said in settings.items())
    recipe: dict[str, Any] = {"strategy": strategy}
    for _, part in parts:
        recipe |= part.recipe
    if not isinstance(value, dict):
        return taken(recipe, _with_one("by FSDP2", strategy))
    return Answer("taken", recipe, "by FSDP2", parts if _has_text(config) else _told_with_first(parts, strategy))


def _has_text(config: Config) -> bool:
    """Whether `fsdp` has options of its own beside `fsdp_config`, and so tells of the strategy."""
    value = config.get("fsdp", False)
    return not isinstance(value, dict) and not is_nothing(value)


def _told_with_first(parts: tuple[tuple[str, Answer], ...], strategy: str) -> tuple[tuple[str, Answer], ...]:
    """The keys of a mapping, of which the first tells what to write on one device: the mapping has no row itself."""
    (name, first), *others = parts
    return (name, replace(first, note=_with_one(first.note or "by FSDP2", strategy))), *others


def _options(config: Config) -> set[str]:
    value = config.get("fsdp", "")
    options = value if isinstance(value, list) else str(value).replace(",", " ").split()
    return {str(option).lower() for option in options}


def _fsdp_strategy(config: Config) -> str:
    """What `fsdp` and `fsdp_config` say together."""
    settings = config.get("fsdp_config", config.get("fsdp"))
    if isinstance(settings, str) and settings.endswith(".json"):
        settings = config.read(settings)
    plain = (
        {str(key).removeprefix("fsdp_"): said for key, said in settings.items()} if isinstance(settings, dict) else {}
    )
    options = _options(config)
    if "no_shard" in options:
        return "ddp"
    if options & {"hybrid_shard", "hybrid_shard_zero2"}:
        return "hsdp"
    return "fsdp_offload" if "offload" in options or is_on(plain.get("offload_params", False)) else "fsdp"


def _part(key: str, value: Any, strategy: str) -> Answer:
    if key == "offload_params" and is_on(value):
        return taken({"strategy": strategy})
    if key == "activation_checkpointing":
        return taken({"activation_checkpointing": is_on(value)})
    if key == "reshard_after_forward" and is_off(value):
        return none("weights are gathered anew for the backward pass; strategy: zero2 keeps them whole")
    if key in ("state_dict_type", "final_state_dict_type"):
        return same("checkpoints are sharded; the result is an ordinary model or adapter")
    return same("strategy: fsdp decides it: FSDP2, wrapped by the model's own layers")
