"""LLaMA-Factory's data: names in `dataset`, looked up in `dataset_info.json` (llamafactory/data/parser.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_recipes.convert.answers import Answer, Config, is_nothing, names_of, none, same, taken

INFO = "dataset_info.json"
# Their column name → ours, for rows of questions and answers.
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"}
_USUAL = {"prompt": "instruction", "query": "input", "response": "output"}
_TURNS = (("from", "value"), ("role", "content"))


def training(value: Any, config: Config) -> Answer:
    """`dataset`, with `eval_dataset` behind it as given eval sets: one key of the recipe."""
    return _with_evaluation(config, _answers(value, config))


def evaluation(value: Any, config: Config) -> Answer:
    """`eval_dataset`."""
    return _with_evaluation(config, _answers(value, config))


def _with_evaluation(config: Config, shown: list[tuple[str, Answer]]) -> Answer:
    train = [part.recipe for _, part in _answers(config.get("dataset", []), config)]
    given = [{**part.recipe, "eval_share": 1} for _, part in _answers(config.get("eval_dataset", []), config)]
    parts = tuple((f"[{name}]", part) for name, part in shown)
    return Answer("taken", {"datasets": [*train, *given]}, "", parts)


def _answers(value: Any, config: Config) -> list[tuple[str, Answer]]:
    folder = str(config.get("dataset_dir", "data"))
    info = {} if folder == "ONLINE" else _info(folder, config)
    return [(name, _source(name, folder, info, config)) for name in names_of(value)]


def _info(folder: str, config: Config) -> Mapping[str, Any] | None:
    content = config.read(f"{folder}/{INFO}")
    return content if isinstance(content, dict) else None


def _source(name: str, folder: str, info: Mapping[str, Any] | None, config: Config) -> Answer:
    text = {"format": "text"} if config.get("stage") == "pt" else {}
    if folder == "ONLINE":
        return taken({"path": name, **_first_rows(name, False, config), **text}, "a name on the Hub")
    if info is None or not isinstance(info.get(name), dict):
        where = f"{folder}/{INFO} {'was not found' if info is None else f'has no {name!r}'}"
        path = config.find(f"{folder}/{name}.json") or config.find(f"{folder}/{name}.jsonl") or f"{folder}/{name}.json"
        return Answer("none", {"path": path, **text}, f"{where}: put the data at {path}, or mend the path")
    entry = info[name]
    return _known(name, entry, folder, config)


def _known(name: str, entry: Mapping[str, Any], folder: str, config: Config) -> Answer:
    """One entry of `dataset_info.json`."""
    notes: list[str] = []
    source: dict[str, Any] = _place(entry, folder, config, notes)
    text = config.get("stage") == "pt"
    columns = entry.get("columns") or {}
    if text:
        source["format"] = "text"
        column = columns.get("prompt", "instruction" if not columns else "text")
        if column != "text":
            source["columns"] = {"text": column}
    elif entry.get("formatting", "alpaca") == "alpaca":
        source |= {"format": "alpaca", **_alpaca_columns(columns, notes)}
    else:
        source |= _chat(entry, columns, notes)
    if entry.get("ranking") or columns.get("chosen") or columns.get("kto_tag"):
        notes.append("it holds preferences: only rows of answers are learned from")
    if any(columns.get(kind) for kind in ("images", "videos", "audios")):
        notes.append("rows with images, videos or audio are dropped and counted: only text is trained on")
    if entry.get("num_samples"):
        notes.append(f"num_samples: {entry['num_samples']} drawn at random has no counterpart: cut the file beforehand")
    return taken(source, "; ".join(notes))


def _place(entry: Mapping[str, Any], folder: str, config: Config, notes: list[str]) -> dict[str, Any]:
    if hub := entry.get("hf_hub_url"):
        named = {
            key: str(entry[theirs]) for key, theirs in (("name", "subset"), ("split", "split")) if entry.get(theirs)
        }
        if entry.get("folder"):
            notes.append(f"folder: {entry['folder']} has no counterpart: download it, and name its files")
        cut = _first_rows(named.get("split", "train"), False, config)
        return {"path": str(hub), **named, **cut}
    if other := entry.get("ms_hub_url") or entry.get("om_hub_url") or entry.get("cloud_file_name"):
        notes.append("it lies on another hub: download it, and name its files")
        return {"path": str(other)}
    if script := entry.get("script_url"):
        notes.append("it is made by a script, and data are never read by code: run it once, and name what it writes")
        return {"path": f"{folder}/{script}"}
    name = f"{folder}/{entry.get('file_name')}"
    found = config.find(name)
    if not found:
        notes.append("not found on this disk: put it there, or mend the path")
    return {"path": found or name}


def _first_rows(split: str, local: bool, config: Config) -> dict[str, str]:
    """`max_samples` keeps the first rows, which a split of a Hub data set can say."""
    count = config.get("max_samples")
    return {"split": f"{split if '/' not in split else 'train'}[:{count}]"} if count and not local else {}


def _alpaca_columns(columns: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    named = columns or _USUAL
    renamed = {_ALPACA[theirs]: column for theirs, column in named.items() if theirs in _ALPACA and column}
    if named.get("tools"):
        renamed["tools"] = named["tools"]
    if columns and not columns.get("query"):
        notes.append("it names no query: a column `input` is read too, where there is one")
    different = {ours: column for ours, column in renamed.items() if ours != column}
    return {"columns": different} if different else {}


def _chat(entry: Mapping[str, Any], columns: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    tags = entry.get("tags") or {}
    words = (tags.get("role_tag", "from"), tags.get("content_tag", "value"))
    if words not in _TURNS:
        notes.append(f"turns are read as from/value or role/content: rename {words[0]} and {words[1]} in the data")
    key = columns.get("messages", "conversations") or "conversations"
    name, ours = ("messages", "messages") if words == _TURNS[1] else ("sharegpt", "conversations")
    renamed = {} if key == ours else {ours: key}
    renamed |= {field: columns[field] for field in ("system", "tools") if columns.get(field, field) != field}
    return {"format": name, **({"columns": renamed} if renamed else {})}


def max_samples(value: Any, config: Config) -> Answer:
    """The first rows of each data set: told per source where it can be."""
    answers = _answers(config.get("dataset", []), config)
    cut = [name for name, part in answers if "split" in part.recipe and "[:" in str(part.recipe["split"])]
    if answers and len(cut) == len(answers):
        return same("told with dataset, as split")
    return none(f"files are read whole: cut them beforehand, e.g. to their first {value} rows")


def mix_strategy(value: Any, config: Config) -> Answer:
    """All rows of all sources, or drawn in turn."""
    if value == "concat" or is_nothing(value):
        return same("all rows of all sources, shuffled together")
    return none("sources are not drawn in turn: give one role: general, and general_share")
