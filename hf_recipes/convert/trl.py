"""The YAML of `trl sft --config` (trl/trainer/sft_config.py, model_config.py, scripts/utils.py): nearly a recipe, but
for the defaults, the data and what is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.convert.answers import (
    Answer,
    Config,
    Rule,
    holds,
    is_nothing,
    is_on,
    lacks,
    listed,
    none,
    numeric,
    rename,
    same,
    switch,
    taken,
)
from hf_recipes.convert.common_rules import dora, held_out, only_where
from hf_recipes.convert.engine import Default, Tool
from hf_recipes.convert.places import files_of, first_row, not_found
from hf_recipes.convert.trainer_keys import SPEED_ONLY, no_evaluation, trainer_rules
from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.source_spec import BUILDERS

# completion_only_loss, where it is not given, is decided by the first row (trl/trainer/sft_trainer.py).
_COMPLETION_ALONE = "TRL learns of prompt/completion rows the completion alone"


def _method(config: Config) -> str:
    """use_peft, load_in_4bit, load_in_8bit and use_dora together; without PEFT every weight is trained."""
    if not config.on("use_peft"):
        return "full"
    if config.on("load_in_4bit") or config.on("load_in_8bit"):
        return "qlora"
    return "dora" if config.on("use_dora") else "lora"


def _peft(value: Any, config: Config) -> Answer:
    return taken({"method": _method(config)})


def _four_bits(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return same("off, as here")
    return taken({"method": "qlora"}) if config.on("use_peft") else none("a quantised base is trained by LoRA only")


def _eight_bits(value: Any, config: Config) -> Answer:
    if not is_on(value):
        return same("off, as here")
    if not config.on("use_peft"):
        return none("a quantised base is trained by LoRA only")
    return taken({"method": "qlora", "load_in_8bit": True})


def _for_peft(rule: Rule) -> Rule:
    return only_where(lambda config: config.on("use_peft"), rule, "use_peft")


def _evaluates(config: Config) -> bool:
    return not is_nothing(config.get("eval_strategy", "no"))


def _name(value: Any, config: Config) -> Answer:
    if config.get("datasets"):
        return same("datasets wins over it, there too")
    found = config.find(str(value))
    subset = {"name": str(config.get("dataset_config"))} if config.get("dataset_config") else {}
    source: dict[str, Any] = {"path": found or str(value), **subset}
    train, test = config.get("dataset_train_split", "train"), config.get("dataset_test_split", "test")
    sources = [source if train == "train" else {**source, "split": train}]
    if _evaluates(config):
        sources.append({**source, "split": test, "eval_share": 1})
    return taken({"datasets": sources}, "" if found else not_found(str(value)))


def _datasets(value: Any, config: Config) -> Answer:
    parts, sources = [], []
    for index, entry in enumerate(value if isinstance(value, list) else [value]):
        item = entry if isinstance(entry, dict) else {"path": entry}
        inner = tuple((key, _part(key, item, config)) for key in item)
        source: dict[str, Any] = {}
        for _, part in inner:
            source |= part.recipe
        if not source.keys() & {"path", "paths"}:
            raise UserError(f"{config.path}: entry {index + 1} of datasets has no path: name a file or Hub data set.")
        paths = source.pop("paths", None) or [source["path"]]
        sources += [{**source, "path": path} for path in paths]
        parts.append((f"[{index}]", Answer("taken", {}, "", inner)))
    return Answer("taken", {"datasets": sources}, "", tuple(parts))


def _part(key: str, entry: Mapping[str, Any], config: Config) -> Answer:
    value, files = entry[key], entry.get("data_files")
    reads_files = entry.get("path") in BUILDERS and files and not isinstance(files, dict)
    if value is None:
        return same("empty, as if absent")
    if key == "path" and reads_files:
        return files_of(files, config)
    if key == "path":
        found = config.find(str(value))
        return taken({"path": found or str(value)}, "" if found else not_found(str(value)))
    if key == "data_files" and reads_files:
        return same("told with path")
    if key in ("name", "split"):
        return same("as here") if value == "train" else taken({key: str(value)})
    if key == "data_files" and not isinstance(value, dict):
        return taken({key: value})
    if key == "columns":
        return same("columns that a format does not know are not read")
    if key == "fraction":
        return none("rows are not drawn by fraction: give one role: general, and general_share")
    return none("name the files themselves, by path or data_files")


def _completion_only(value: Any, config: Config) -> Answer:
    if is_on(value):
        return taken({"assistant_only_loss": True}, "which covers prompt/completion rows too")
    return taken({"assistant_only_loss": False})


def _assistant_only(value: Any, config: Config) -> Answer:
    if config.get("completion_only_loss") is not None and not is_on(value):
        return same("told with completion_only_loss")
    if not is_on(value) and _all_pairs(config):
        return taken({"assistant_only_loss": True}, _COMPLETION_ALONE)
    return taken({"assistant_only_loss": is_on(value)})


def _packing(value: Any, config: Config) -> Answer:
    return taken(
        {"packing": is_on(value)}, "samples are kept whole and apart, after a measurement" if is_on(value) else ""
    )


def _packing_strategy(value: Any, config: Config) -> Answer:
    if value in ("bfd", "bfd_split"):
        return same("best fit, nothing split: overlong: split cuts long rows beforehand")
    return none("rows are never cut anywhere to fill a length: packing places whole samples")


def _loss_type(value: Any, config: Config) -> Answer:
    return same("as here") if value in ("nll", "chunked_nll") else none("the loss is plain cross-entropy")


def _environment(value: Any, config: Config) -> Answer:
    return none("set these variables before `hf-recipes sft`")


_RULES: dict[str, Rule] = {
    **trainer_rules(),
    "model_name_or_path": rename("model_name_or_path"),
    "model_revision": rename("model_revision"),
    "dtype": rename("dtype"),
    "torch_dtype": rename("dtype"),
    "attn_implementation": rename("attn_implementation"),
    "chat_template_path": rename("chat_template_path"),
    "use_peft": _peft,
    "load_in_4bit": _four_bits,
    "load_in_8bit": _eight_bits,
    "use_dora": _for_peft(dora(_method)),
    "lora_r": _for_peft(numeric("lora_r")),
    "lora_alpha": _for_peft(numeric("lora_alpha")),
    "lora_dropout": _for_peft(numeric("lora_dropout")),
    "lora_target_modules": _for_peft(listed("lora_target_modules")),
    "lora_target_parameters": _for_peft(listed("lora_target_parameters")),
    "lora_modules_to_save": _for_peft(listed("lora_modules_to_save")),
    "use_rslora": _for_peft(switch("use_rslora")),
    "lora_task_type": holds("the task decides it"),
    "bnb_4bit_quant_type": rename("bnb_4bit_quant_type"),
    "bnb_4bit_quant_storage": rename("bnb_4bit_quant_storage"),
    "use_bnb_nested_quant": switch("use_bnb_nested_quant"),
    "dataset_name": _name,
    "datasets": _datasets,
    "dataset_config": holds("told with dataset_name"),
    "dataset_train_split": holds("told with dataset_name"),
    "dataset_test_split": holds("told with dataset_name; a given eval set where eval_strategy is not no"),
    "dataset_streaming": switch("streaming"),
    "streaming": switch("streaming"),
    "test_split_size": held_out("test_split_size"),
    "ignore_bias_buffers": holds(SPEED_ONLY),
    "max_length": numeric("max_length"),
    "max_seq_length": numeric("max_seq_length", "max_length"),
    "dataset_num_proc": numeric("dataset_num_proc"),
    "dataset_text_field": lambda value, config: (
        same("as here") if value == "text" else none(f"write columns: {{text: {value}}} into the source")
    ),
    "dataset_kwargs": lacks("data are prepared by `datasets:` alone"),
    "model_init_kwargs": lacks("write the model's keys (dtype, attn_implementation, model_revision) themselves"),
    "packing": _packing,
    "packing_strategy": _packing_strategy,
    "padding_free": lacks(SPEED_ONLY),
    "pad_to_multiple_of": lacks(SPEED_ONLY),
    "eval_packing": lacks("the eval set is never packed"),
    "truncation_mode": holds("no answer is cut at its end: overlong says what is done with long rows"),
    "completion_only_loss": _completion_only,
    "assistant_only_loss": _assistant_only,
    "shuffle_dataset": holds("always shuffled, by seed"),
    "pad_token": holds("padding is masked by position: any token will do"),
    "eos_token": lacks("the token that ends a turn is found from the chat template"),
    "loss_type": _loss_type,
    "activation_offloading": switch("activation_offloading"),
    "project": rename("project"),
    "env": _environment,
    "accelerate_config": lacks("hf-recipes sft --config_file FILE takes it"),
    "num_processes": numeric("num_processes"),
}


def _refuse(config: Config) -> None:
    for key in ("beta", "reward_model_path", "num_generations"):
        if key in config.values:
            raise UserError(
                f"{config.path}: '{key}' belongs to preferences or rewards, and this tool trains on answers alone: "
                "there is no recipe for it."
            )


def _defaults(config: Config, recipe: Mapping[str, Any]) -> Sequence[Default]:
    method = _method(config)
    told = [
        Default({"method": method}, "TRL trains every weight unless use_peft is on; ours trains LoRA"),
        Default({"lr_scheduler_type": "linear"}, "TRL's, to zero; ours is a cosine to a tenth of the peak"),
        Default({"warmup_steps": 0}, "TRL's; ours is 3 % of the run"),
        *no_evaluation("TRL", config, recipe),
        *_what_is_learned(config),
        Default(
            {}, "longer rows are cut there, answers too; here they are dropped and counted: overlong says otherwise"
        ),
    ]
    if method != "full":
        told.append(Default({"learning_rate": 2e-5}, "TRL's; ours is 2e-4 for LoRA, ten times that of all weights"))
        if "lora_target_modules" not in recipe:
            told.append(Default({}, "PEFT chooses the modules by architecture there; ours are q_proj, v_proj"))
    return told


def _what_is_learned(config: Config) -> list[Default]:
    """By the rows where they are here: TRL learns all of a conversation, and of prompt and completion the latter."""
    if _all_pairs(config):
        told = [Default({"assistant_only_loss": True}, _COMPLETION_ALONE)]
    else:
        told = [
            Default(
                {"assistant_only_loss": False},
                "TRL learns whole conversations, questions too (of prompt/completion rows the completion alone: for "
                "those write true)",
            )
        ]
    if any(row is None or isinstance(row.get("prompt"), str) for row in _first_rows(config)):
        what = "prompt and completion that are plain texts are joined as they are there"
        told.append(Default({}, f"{what}; here the tokenizer's chat template is put around them"))
    return told


def _all_pairs(config: Config) -> bool:
    """Whether every source is here and holds prompts and completions."""
    rows = _first_rows(config)
    return bool(rows) and all(row is not None and {"prompt", "completion"} <= row.keys() for row in rows)


def _first_rows(config: Config) -> list[dict[str, Any] | None]:
    """The first row of every source; None of those that are not on this disk, of which nothing is known."""
    return [first_row(name, config) if config.find(name) else None for name in _source_names(config)]


def _source_names(config: Config) -> list[str]:
    """The files or data sets by the names that the configuration gives them."""
    entries = config.get("datasets") or config.get("dataset_name") or []
    names: list[Any] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        item = entry if isinstance(entry, dict) else {"path": entry}
        files = item.get("data_files") if item.get("path") in BUILDERS else item.get("path")
        names += files if isinstance(files, list) else [files]
    return [str(name) for name in names]


TRL = Tool(
    name="trl",
    title="TRL",
    rules=_RULES,
    telling=frozenset(
        ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "use_peft", "test_split_size",
         "completion_only_loss", "dataset_num_proc", "packing_strategy", "max_seq_length", "dataset_text_field")
    ),
    defaults=_defaults,
    refuse=_refuse,
)  # fmt: skip
