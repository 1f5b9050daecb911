"""ms-swift's flags, as a `swift sft …` command or the same names in a file (swift/arguments/*.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    is_on,
    listed,
    names_of,
    none,
    number_of,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.common_rules import attention, dora, early_stopping, lora_start, only_where
from hf_recipes.convert.engine import Default, Tool
from hf_recipes.convert.places import ALPACA_JOINED, first_row, not_found
from hf_recipes.convert.swift_told import FAMILIES, TOLD
from hf_recipes.convert.trainer_keys import bf16_weights, no_evaluation, trainer_rules
from hf_recipes.core.errors import UserError

_METHOD_KEYS = ("tuner_type", "train_type", "sft_type")  # of version 4, 3 and 2
_ATTENTIONS = {"flash_attn": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
# Their standard column → ours, as `columns` gives them: {column of the file: standard column}.
_COLUMNS = {
    "query": "instruction",
    "response": "output",
    "system": "system",
    "history": "history",
    "messages": "messages",
    "conversations": "conversations",
    "tools": "tools",
}


def _kind(config: Config) -> str:
    return str(next((config.get(key) for key in _METHOD_KEYS if config.get(key)), "lora"))


def _is_lora(config: Config) -> bool:
    return _kind(config) == "lora"


def _method(config: Config) -> str:
    if _kind(config) != "lora":
        return _kind(config)
    if config.get("quant_bits"):
        return "qlora"
    return "dora" if config.on("use_dora") else "lora"


def _tuner(value: Any, config: Config) -> Answer:
    if value not in ("lora", "full"):
        raise UserError(f"{config.path}: tuner_type '{value}' has no counterpart here: convert with lora, or full.")
    return taken({"method": _method(config)})


def _bits(value: Any, config: Config) -> Answer:
    if str(value) not in ("4", "8") or config.get("quant_method", "bnb") != "bnb":
        by = config.get("quant_method", "bnb")
        return none(f"{value} bits by {by} are not trained on: method: qlora, 4 bits by bitsandbytes, is near")
    return taken({"method": "qlora", **({"load_in_8bit": True} if str(value) == "8" else {})})


def _words(value: Any) -> list[str]:
    """What follows a flag: one word, or several."""
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _targets(value: Any, config: Config) -> Answer:
    named = [name for word in _words(value) for name in names_of(word)]
    special = [name for name in named if name.startswith("all-") and name != "all-linear"]
    note = f"{', '.join(special)} is not offered: name these modules, without all-linear" if special else ""
    return taken({"lora_target_modules": [name for name in named if name not in special]}, note)


def _model(value: Any, config: Config) -> Answer:
    note = (
        "from the Hugging Face Hub, which may not have it"
        if not config.on("use_hf") and not config.find(str(value))
        else ""
    )
    return taken({"model_name_or_path": str(value)}, note)


def _dataset(value: Any, config: Config) -> Answer:
    return _sources(config, _parts(value, config))


def _val_dataset(value: Any, config: Config) -> Answer:
    return _sources(config, _parts(value, config))


def _sources(config: Config, shown: tuple[tuple[str, Answer], ...]) -> Answer:
    train, given = (
        [part.recipe for _, part in _parts(config.get(key, []), config) if part.recipe]
        for key in ("dataset", "val_dataset")
    )
    given = [{**source, "eval_share": 1} for source in given]
    return Answer("taken", {"datasets": [*train, *given]}, "", shown)


def _parts(value: Any, config: Config) -> tuple[tuple[str, Answer], ...]:
    parts: list[tuple[str, Answer]] = []
    for index, word in enumerate(_words(value) if value else []):
        parts.append((f"[{index}]", _source(word, config)))
        if rows := _rows_of_file(word, config):
            lacking = f"a file is read whole: cut it to {rows} rows beforehand (they are drawn at random there)"
            parts.append((f"[{word}]", none(lacking)))
    return tuple(parts)


def _rows_of_file(word: str, config: Config) -> str:
    """How many rows of a local file are asked for; empty where all are."""
    plain, _, rows = word.rpartition("::")[2].partition("#")
    return rows if rows and not config.find(word) and config.find(plain) else ""


def _source(word: str, config: Config) -> Answer:
    """``hub::name:subset#rows`` (swift/dataset/dataset_syntax.py)."""
    columns = _column_names(config)
    if found := config.find(word):
        return taken({"path": found, **(columns or _own_columns(word, config))})
    hub, _, plain = word.rpartition("::")
    plain, _, rows = plain.partition("#")
    if found := config.find(plain):
        return taken({"path": found, **(columns or _own_columns(plain, config))})
    cut = f"cut it to {rows} rows beforehand (they are drawn at random there)" if rows else ""
    name, _, subset = plain.partition(":") if not re.match(r"^[A-Za-z]:[\\/]", plain) else (plain, "", "")
    source: dict[str, Any] = {"path": name, **({"name": subset.split("/")[0]} if subset else {}), **columns}
    if rows and not name.startswith((".", "/")):
        source["split"] = f"train[:{rows}]"
        cut = "the first rows, where they are drawn at random there"
    notes = [not_found(name), cut]
    if hub != "hf" and not config.on("use_hf"):
        notes.insert(
            1, "it is ModelScope's name there: see that the Hub has the same, or download it and name its files"
        )
    return taken(source, "; ".join(note for note in notes if note))


def _own_columns(name: str, config: Config) -> dict[str, Any]:
    """Of a file in ms-swift's own format, ``{"query", "response"}`` (swift/dataset/preprocessor/core.py)."""
    if {"query", "response"} <= first_row(name, config).keys():
        return {"columns": {"instruction": "query", "output": "response"}}
    return {}


def _column_names(config: Config) -> dict[str, Any]:
    columns = config.get("columns")
    if not isinstance(columns, dict):
        return {}
    renamed = {_COLUMNS[str(standard)]: column for column, standard in columns.items() if str(standard) in _COLUMNS}
    return {"columns": renamed} if renamed else {}


def _columns(value: Any, config: Config) -> Answer:
    if not isinstance(value, dict):
        return none("write columns of each source: {instruction: NAME, output: NAME}")
    odd = [f"{column} → {standard}" for column, standard in value.items() if str(standard) not in _COLUMNS]
    return none(f"no column for {', '.join(odd)}: rename it in the data") if odd else same("told with dataset")


def _split_ratio(value: Any, config: Config) -> Answer:
    share = number_of(value, "split_dataset_ratio", config)
    if config.get("val_dataset"):
        return same("val_dataset wins over it, there too")
    return taken({"eval_share": share}, "of each source, and groups and duplicates stay together" if share else "")


def _too_long(value: Any, config: Config) -> Answer:
    if value == "delete":
        return taken({"overlong": "drop"})
    if value == "split":
        return taken({"overlong": "split"}, "between turns of a conversation; plain text anywhere")
    if value == "left":
        return taken({"overlong": "shorten_prompt"}, "the answer stays whole; rows that are all answer are dropped")
    return none("no answer is cut at its end: overlong: shorten_prompt keeps it whole, split makes several samples")


def _loss_scale(value: Any, config: Config) -> Answer:
    strategies = {"default": {"assistant_only_loss": True}, "all": {"assistant_only_loss": False}}
    strategies["last_round"] = {"assistant_only_loss": True, "mask_history": True}
    if str(value) in strategies:
        return taken(strategies[str(value)])
    return none("every learned token weighs 1: loss_scale of 0 in a turn keeps it from being learned")


def _dtype(value: Any, config: Config) -> Answer:
    return taken({"dtype": str(value)})


def _attention(value: Any, config: Config) -> Answer:
    return attention(_ATTENTIONS.get(str(value), str(value)))


def _optimizer(value: Any, config: Config) -> Answer:
    if value == "lorap":
        return same("LoRA+ is told with lorap_lr_ratio")
    return none("another optimizer is not offered: AdamW is used; choose the rate anew")


def _freeze_ratio(value: Any, config: Config) -> Answer:
    if number_of(value, "freeze_parameters_ratio", config) == 0:
        return same("0: nothing is frozen")
    return none("all weights are trained: write method: partial with trainable_layers (from the last)")


def _parallel(value: Any, config: Config) -> Answer:
    size = int(number_of(value, "sequence_parallel_size", config))
    return same("1: off, as here") if size <= 1 else taken({"strategy": "cp", "context_parallel_size": size})


def _text(value: Any, config: Config) -> Answer:
    return (
        same("as here") if is_on(value) else none("plain text is format: text; conversations go by the chat template")
    )


_RULES: dict[str, Rule] = {
    **trainer_rules(),
    **TOLD,
    **dict.fromkeys(_METHOD_KEYS, _tuner),
    "model": _model,
    "model_revision": rename("model_revision"),
    "dataset": _dataset,
    "val_dataset": _val_dataset,
    "columns": _columns,
    "split_dataset_ratio": _split_ratio,
    "dataset_num_proc": numeric("dataset_num_proc"),
    "streaming": switch("streaming"),
    "quant_bits": _bits,
    "bnb_4bit_quant_type": rename("bnb_4bit_quant_type"),
    "bnb_4bit_use_double_quant": switch("use_bnb_nested_quant"),
    "bnb_4bit_quant_storage": rename("bnb_4bit_quant_storage"),
    "torch_dtype": _dtype,
    "attn_impl": _attention,
    "lora_rank": numeric("lora_rank", "lora_r"),
    "lora_alpha": numeric("lora_alpha"),
    "lora_dropout": numeric("lora_dropout"),
    "target_modules": _targets,
    "target_parameters": listed("lora_target_parameters"),
    "modules_to_save": lambda value, config: taken({"lora_modules_to_save": _words(value)}),
    "lorap_lr_ratio": numeric("lorap_lr_ratio", "loraplus_lr_ratio"),
    "use_rslora": switch("use_rslora"),
    "use_dora": dora(_method),
    "init_weights": lora_start,
    "init_lora_weights": lora_start,
    "freeze_parameters_ratio": _freeze_ratio,
    "optimizer": _optimizer,
    "max_length": numeric("max_length"),
    "truncation_strategy": _too_long,
    "packing": switch("packing", "packed samples never see each other, as there"),
    "loss_scale": _loss_scale,
    "use_chat_template": _text,
    "sequence_parallel_size": _parallel,
    "early_stop_interval": early_stopping("early_stop_interval"),
}


_LORA_KEYS = (
    "lora_rank", "lora_alpha", "lora_dropout", "target_modules", "target_parameters", "modules_to_save",
    "lorap_lr_ratio", "use_rslora", "use_dora", "init_weights", "init_lora_weights", "quant_bits",
)  # fmt: skip


_RULES |= {key: only_where(_is_lora, _RULES[key], "LoRA") for key in _LORA_KEYS}


def _refuse(config: Config) -> None:
    task = config.get("task_type", "causal_lm")
    if config.get("rlhf_type") or task != "causal_lm":
        what = f"rlhf_type {config.get('rlhf_type')}" if config.get("rlhf_type") else f"task_type {task}"
        raise UserError(f"{config.path}: {what} is not supervised fine-tuning: there is no recipe for it.")


def _defaults(config: Config, recipe: Mapping[str, Any]) -> Sequence[Default]:
    method = _method(config)
    rate = 1e-5 if method == "full" else 1e-4
    told = [
        Default({"method": method}, "ms-swift trains LoRA"),
        Default({"learning_rate": rate}, f"ms-swift's; ours is {2e-5 if method == 'full' else 2e-4:g}"),
        Default({"lr_scheduler_type": "cosine"}, "ms-swift's cosine goes to zero; ours to a tenth of the peak"),
        Default({"warmup_steps": 0}, "ms-swift's; ours is 3 % of the run"),
        Default({"weight_decay": 0.1}, "ms-swift's; ours is 0"),
        Default({"adam_beta2": 0.95}, "ms-swift's; ours is 0.999"),
        Default({"per_device_train_batch_size": 1}, "ms-swift's; ours is 8"),
        *_accumulation(config, recipe),
        *no_evaluation("ms-swift", config, recipe),
        *bf16_weights("ms-swift", {"method": method, **recipe}),
    ]
    if recipe.get("packing") and "max_length" not in recipe:
        told.append(Default({}, "ms-swift packs up to the model's length; ours up to 1024 tokens: set max_length"))
    elif not recipe.get("packing"):
        told.append(Default({"max_length": None}, "ms-swift's: no limit but the model's; a number bounds memory"))
    told.append(Default({}, ALPACA_JOINED))
    if method in ("lora", "dora", "qlora"):
        told += [
            Default({"lora_r": 8}, "ms-swift's lora_rank; ours is 16"),
            Default({"lora_target_modules": ["all-linear"]}, "ms-swift's; ours are q_proj, v_proj"),
        ]
    return told


def _accumulation(config: Config, recipe: Mapping[str, Any]) -> list[Default]:
    """16 rows a step, over the processes there are."""
    rows = int(recipe.get("per_device_train_batch_size", 1)) * int(recipe.get("num_processes", 1))
    note = "ms-swift fills the step to 16 rows" + ("" if "num_processes" in recipe else "; divide by the processes")
    return [Default({"gradient_accumulation_steps": max(1, -(-16 // rows))}, note)]


SWIFT = Tool(
    name="swift",
    title="ms-swift",
    rules=_RULES,
    telling=frozenset(
        ("model", "tuner_type", "train_type", "sft_type", "target_modules", "split_dataset_ratio", "quant_bits",
         "torch_dtype", "attn_impl", "truncation_strategy", "loss_scale", "NPROC_PER_NODE", "lorap_lr_ratio", "use_hf")
    ),
    defaults=_defaults,
    refuse=_refuse,
    families=FAMILIES,
)  # fmt: skip
