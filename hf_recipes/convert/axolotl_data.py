"""Axolotl's ``datasets:``, entry by entry and key by key (axolotl/utils/schemas/datasets.py, prompt_strategies/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_recipes.convert.answers import Answer, Config, is_nothing, names_of, none, same, taken
from hf_recipes.convert.places import files_of, not_found
from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.source_spec import BUILDERS

# Their prompt strategy → our format, and the columns it reads where they are not ours.
_ALPACA: dict[str, dict[str, str]] = {
    "alpaca": {},
    "alpaca_chat.load": {},
    "alpaca_chat.load_concise": {},
    "alpaca_chat.load_no_prompt": {},
    "alpaca_chat.load_qa": {"instruction": "question", "output": "answer"},
    "alpaca_chat.load_camel_ai": {"instruction": "message_1", "output": "message_2"},
    "alpaca_w_system.load": {},
    "alpaca_w_system.load_open_orca": {"instruction": "question", "output": "response", "system": "system_prompt"},
    "gpteacher": {"output": "response"},
    "oasst": {"instruction": "INSTRUCTION", "output": "RESPONSE"},
    "summarizetldr": {"instruction": "article", "output": "summary"},
}
_TRAINING_FIELDS = ("loss_weight", "weight", "train", "training", "loss", "loss_scale")
_WORDS = {"role": ("role", "from"), "content": ("content", "value")}
_PROMPTS_OF_ITS_OWN = (
    "its own prompt text (### Instruction: …) is not written: instruction and input become a user turn of the chat "
    "template, which asks the model in the form it knows (a base model without a template needs chat_template_path)"
)
_DEFAULTS: dict[str, tuple[Any, str]] = {
    "train_on_eos": ("turn", "the token that ends each answer is always learned, no other"),
    "train_on_eot": ("turn", "the token that ends each answer is always learned, no other"),
    "field_tools": ("tools", "rename the field to tools, or write columns: {tools: NAME}"),
    "field_thinking": ("reasoning_content", "rename the field to reasoning_content"),
    "template_thinking_key": ("reasoning_content", "the template is given reasoning_content"),
}


def dataset_list(value: Any, config: Config) -> Answer:
    """Every entry of ``datasets:`` as one of ours."""
    return _entries(value, config, {})


def test_datasets(value: Any, config: Config) -> Answer:
    """Every entry of ``test_datasets:`` as a given eval set, beside the training sources."""
    answer = _entries(value, config, {"eval_share": 1})
    train = dataset_list(config.get("datasets", []), config)
    return Answer("taken", {"datasets": [*train.recipe["datasets"], *answer.recipe["datasets"]]}, "", answer.parts)


def all_datasets(value: Any, config: Config) -> Answer:
    """``datasets:``, with ``test_datasets:`` behind them where there are any: one key of the recipe."""
    answer = dataset_list(value, config)
    if config.get("test_datasets") is None:
        return answer
    both = test_datasets(config.get("test_datasets"), config)
    return Answer("taken", both.recipe, "", answer.parts)


def pretraining(value: Any, config: Config) -> Answer:
    """Plain text that streams."""
    answer = _entries(value, config, {"format": "text"}, text=True)
    return Answer("taken", {**answer.recipe, "streaming": True}, "", answer.parts)


def _entries(value: Any, config: Config, fixed: Mapping[str, Any], text: bool = False) -> Answer:
    entries = value if isinstance(value, list) else [value]
    sources: list[dict[str, Any]] = []
    parts = []
    for index, entry in enumerate(entries):
        item = entry if isinstance(entry, dict) else {"path": entry}
        if not item.get("path"):
            raise UserError(f"{config.path}: entry {index + 1} of the data has no path: name a file or Hub data set.")
        inner = tuple((key, _part(key, item, config, text)) for key in item)
        made: dict[str, Any] = {}
        for _, part in inner:
            for ours, said in part.recipe.items():
                made[ours] = {**made.get(ours, {}), **said} if isinstance(said, dict) else said
        parts.append((f"[{index}]", Answer("taken", {}, "", inner)))
        paths = made.pop("paths", None) or [made.pop("path")]
        sources += [{"path": path, **made, **fixed} for path in paths]
    return Answer("taken", {"datasets": sources}, "", tuple(parts))


def _part(key: str, entry: Mapping[str, Any], config: Config, text: bool) -> Answer:
    value = entry[key]
    if value is None:
        return same("empty, as if absent")
    if key in _PARTS:
        return _PARTS[key](value, entry, config)
    if text and key == "text_column":
        return taken({"columns": {"text": str(value)}} if value != "text" else {}, "the column of the text")
    if key in _DEFAULTS:
        usual, otherwise = _DEFAULTS[key]
        return same("as here") if value == usual else none(otherwise)
    if is_nothing(value):
        return same("off there too")
    return none(_LACKING.get(key, "no such key for a source here; `hf-recipes inspect` shows what is trained on"))


_LACKING = {
    "revision": "a Hub data set is read at its newest revision: download the one you mean, and name its directory",
    "shards": "no part of a data set is picked by number: write split: train[:10%]",
    "shards_idx": "no part of a data set is picked by number: write split: train[:10%]",
    "trust_remote_code": "data are never read by code that comes with them",
    "conversation": "the tokenizer's own chat template is used; chat_template_path names another",
    "chat_template_jinja": "write the template to a file, and name it as chat_template_path",
    "message_field_training_detail": "turns are learned or not as a whole, never by characters: split them",
    "drop_system_message": "remove the system turns in the data",
    "split_thinking": "put the reasoning into the turn's reasoning_content",
    "roles": "turns may be human, user, gpt, assistant, system, tool and their usual other names: rename others",
    "input_format": "the prompt is the chat template's: write yours into the data",
    "skip": "no rows are skipped: write split: train[1000:]",
}


def _path(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    name, files = str(value), entry.get("data_files")
    if name in BUILDERS:
        if not files:
            raise UserError(f"{config.path}: the data's path '{name}' needs data_files: name the file itself.")
        return files_of(files, config)
    found = config.find(name)
    return taken({"path": found or name}, "" if found else not_found(name))


def _data_files(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    if str(entry["path"]) in BUILDERS:
        return same("told with path")
    return taken({"data_files": [str(file) for file in (value if isinstance(value, list) else [value])]})


def _split(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    local = str(entry["path"]) in BUILDERS or config.find(str(entry["path"])) is not None
    if not local:
        return taken({"split": str(value)})
    return same("a file has but one") if value == "train" else none("a file is read whole: cut it beforehand")


def _type(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    if isinstance(value, dict):
        return _own_prompt(value)
    name = str(value).split(":")[0]
    if name in _ALPACA:
        columns = {"columns": _ALPACA[name]} if _ALPACA[name] else {}
        return taken({"format": "alpaca", **columns}, _PROMPTS_OF_ITS_OWN)
    if name in ("chat_template", "messages", "messages.chat"):
        return taken({"format": "messages"})
    if name.startswith("sharegpt"):
        return taken({"format": "sharegpt"}, "from/value turns, by the tokenizer's chat template")
    if name in ("completion", "pretrain"):
        field = {"columns": {"text": str(entry["field"])}} if entry.get("field", "text") != "text" else {}
        return taken({"format": "text", **field}, "every token is learned")
    return none(
        f"prompt strategy '{value}': the format is found from the rows; where it is not, write them as instruction "
        "and output, or as messages"
    )


def _own_prompt(value: Mapping[str, Any]) -> Answer:
    """A prompt written in the configuration: its fields become columns, its text has no place."""
    names = {"field_instruction": "instruction", "field_input": "input", "field_output": "output"}
    names["field_system"] = "system"
    parts, columns = [], {}
    for key, said in value.items():
        if key in names and said:
            columns[names[key]] = str(said)
            parts.append((key, taken({"columns": {names[key]: str(said)}})))
        elif is_nothing(said) or said is None:
            parts.append((key, same("empty there too")))
        else:
            parts.append((key, none("the prompt is the chat template's: write this text into the data's instruction")))
    return Answer("taken", {"format": "alpaca", "columns": columns}, "", tuple(parts))


def _field_messages(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    ours = "conversations" if str(entry.get("type", "")).startswith("sharegpt") else "messages"
    return same("as here") if value == ours else taken({"columns": {ours: str(value)}})


def _mappings(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    pairs = value.items() if isinstance(value, dict) else []
    odd = [f"{theirs} → {ours}" for ours, theirs in pairs if theirs not in _WORDS.get(ours, (ours,))]
    if odd:
        return none(f"turns are read as role/content or from/value: rename {', '.join(odd)} in the data")
    return same("turns are read as role/content or from/value, by themselves")


def _message_field(ours: str) -> Any:
    def part(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
        return _mappings({ours: value}, entry, config)

    return part


def _roles_to_train(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    roles = set(names_of(value))
    if roles and roles <= {"assistant", "gpt"}:
        return same("answers are what is learned")
    if config.on("train_on_inputs"):
        return same("train_on_inputs has everything learned")
    return none("only answers are learned, or with assistant_only_loss: false everything")


def _message_field_training(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    if value in _TRAINING_FIELDS:
        return same("read by itself: 0 or false keeps a turn from being learned")
    return none(f"rename '{value}' in the turns to train (true or false)")


def _template(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    if str(value).startswith("tokenizer_default"):
        return same("the tokenizer's own chat template, as here")
    return none(f"'{value}': the tokenizer's own chat template is used; chat_template_path names a Jinja file instead")


def _ds_type(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    return same("the file's ending says it")


def _name(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    return taken({"name": str(value)})


def _field(value: Any, entry: Mapping[str, Any], config: Config) -> Answer:
    return same("told with type")


_PARTS: dict[str, Any] = {
    "path": _path,
    "data_files": _data_files,
    "name": _name,
    "split": _split,
    "type": _type,
    "field": _field,
    "ds_type": _ds_type,
    "field_messages": _field_messages,
    "message_property_mappings": _mappings,
    "message_field_role": _message_field("role"),
    "message_field_content": _message_field("content"),
    "message_field_training": _message_field_training,
    "roles_to_train": _roles_to_train,
    "chat_template": _template,
}


def is_overlong_split(config: Config) -> bool:
    """Whether all of the data is plain text, which Axolotl cuts into pieces of `sequence_len`."""
    entries = config.get("datasets", [])
    kinds = [str(entry.get("type", "")).split(":")[0] for entry in entries if isinstance(entry, dict)]
    return bool(kinds) and all(kind == "completion" for kind in kinds)
