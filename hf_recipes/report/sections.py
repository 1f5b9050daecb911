"""The page's parts, each from the run's record to an HTML fragment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hf_recipes.core.escape import text
from hf_recipes.core.html import facts, folded, note, section, table
from hf_recipes.core.secrets import HIDDEN, names_secret, without_secrets
from hf_recipes.report.headline import Figure, headline
from hf_recipes.report.html import ABSENT, inline, records, value, words
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.series import Alarm

_RAN_KEYS = {
    "method": "method",
    "learning_rate": "learning rate",
    "num_train_epochs": "epochs",
    "max_steps": "max steps",
    "max_length": "max length",
}
_COUNTS = ("global_batch_size", "trainable_parameters", "total_parameters", "seed")
_ENVIRONMENT = ("world_size", "precision", "hardware", "versions")
_SHORT = 5  # entries of a part that is shown unfolded
_SHOWN_ALARMS = 30


def tiles(record: RunRecord) -> str:
    """The few numbers that a reader looks for first."""
    items = "".join(
        f'<div><span class="big{_tone(figure)}">{text(figure.shown)}</span><span>{text(figure.label)}</span></div>'
        for figure in headline(record)
    )
    return f'<div class="tiles">{items}</div>'


def _tone(figure: Figure) -> str:
    rang = figure.name == "alarms" and figure.shown != "0"
    return " wrong" if rang or figure.shown in ("nan", "inf", "-inf") else ""


def problems(found: Iterable[str]) -> str:
    """What could not be read."""
    return "".join(f'<p class="wrong">{text(problem)}</p>' for problem in found)


def alarm_list(record: RunRecord) -> str:
    """Every alarm with what to do about it, and, folded, what else the watchers had to say."""
    found, parts = record.history.alarms(), []
    if not found:
        parts.append(note("No alarm rang." if record.history.last_step is not None else "No events are there."))
    parts += [alarm_table(found[:_SHOWN_ALARMS])] if found else []
    if rest := found[_SHOWN_ALARMS:]:
        parts.append(folded(f"{len(rest)} more", alarm_table(rest)))
    notes = [event for event in record.history.events if event.get("kind") == "note"]
    if notes:
        rows = [[text(event.get(key, "")) for key in ("step", "detector", "message")] for event in notes]
        parts.append(
            folded(f"notes of the watchers ({len(notes)})", table(["step", "watcher", "note"], rows, css="told"))
        )
    return section("Alarms", "".join(parts))


def alarm_table(alarms: Iterable[Alarm]) -> str:
    """One row an alarm."""
    rows = [[str(alarm.step), text(alarm.detector), text(alarm.message), str(alarm.attempt)] for alarm in alarms]
    return table(["step", "watcher", "what happened and what to do", "attempt"], rows, css="told")


def data_ledger(record: RunRecord) -> str:
    """What became of every row, by source; then the totals."""
    if not record.data:
        return section("Data", note("data.json is not there."))
    rest = dict(record.data)
    sources = rest.pop("sources", None)
    parts = [_sources(sources)] if sources else []
    plain = [(words(key), value(item)) for key, item in rest.items() if not isinstance(item, (dict, list))]
    nested = [(words(key), item) for key, item in rest.items() if isinstance(item, (dict, list)) and item]
    for title, item in nested:
        shown = value(item)
        parts.append(f"<h3>{text(title)}</h3>{shown}" if len(item) <= _SHORT else folded(title, shown))
    if plain:
        parts.append(facts(plain))
    return section("Data", "".join(parts))


def _sources(sources: Any) -> str:
    if not isinstance(sources, list) or not all(isinstance(source, dict) for source in sources):
        return value(sources)
    # Counts first: lists (the files with their hashes) would push them off a narrow screen.
    lists = {key for source in sources for key, item in source.items() if isinstance(item, list)}
    return records([{key: source[key] for key in sorted(source, key=lists.__contains__)} for source in sources])


def checkpoints(record: RunRecord) -> str:
    """What is on disk, and whether it was written whole and verified."""
    if not record.saved:
        return section("Checkpoints and results", note("No checkpoint and no result is there."))
    rows = [[text(saved.name), _mark(saved.manifest), _mark(saved.verified)] for saved in record.saved]
    return section("Checkpoints and results", table(["directory", "written whole (manifest)", "verified"], rows))


def recipe(record: RunRecord) -> str:
    """Model, method, data and, folded, every resolved key; the values of secrets are left out."""
    if not record.run:
        return section("Recipe", note("run.json is not there."))
    run, settings = record.run, record.recipe
    pairs = [
        ("model", _model(record)),
        *((name, value(settings.get(key))) for key, name in _RAN_KEYS.items() if key in settings),
        ("data", _data_names(settings)),
        *((words(key), value(_grouped(run[key]))) for key in _COUNTS if key in run),
    ]
    return section("Recipe", facts(pairs) + _all_keys(record))


def _all_keys(record: RunRecord) -> str:
    if not record.recipe:
        return note("run.json holds no recipe.")
    given = record.run.get("given")
    given = set(map(str, given)) if isinstance(given, list) else set()
    rows = [
        [f"<code>{text(key)}</code>", recipe_value(key, item), "given" if key in given else ""]
        for key, item in sorted(record.recipe.items())
    ]
    return folded(f"all {len(rows)} resolved keys", table(["key", "value", ""], rows, css="keys"))


def environment(record: RunRecord) -> str:
    """The machine and the versions."""
    pairs = [
        (words(key), inline(record.run[key]) if isinstance(record.run[key], dict) else value(record.run[key]))
        for key in _ENVIRONMENT
        if record.run.get(key)
    ]
    return section("Environment", facts(pairs) if pairs else note("run.json tells nothing of it."))


def recipe_value(key: str, item: Any) -> str:
    """A key's value as HTML, unless its name says that it is a secret, or it looks like one."""
    return HIDDEN if item and names_secret(key) else value(without_secrets(item))


def _model(record: RunRecord) -> str:
    base = record.run.get("base_model")
    base = base if isinstance(base, dict) else {"name_or_path": base}
    name = record.recipe.get("model_name_or_path") or base.get("name_or_path")
    details = [str(base[key]) for key in ("source", "revision") if base.get(key)]
    return value(name) + (f" <small>{text(', '.join(details))}</small>" if details else "")


def _data_names(settings: dict[str, Any]) -> str:
    sources = settings.get("datasets")
    if not isinstance(sources, list):
        return value(sources)
    names = []
    for source in sources:
        path, role = (source.get("path"), source.get("role")) if isinstance(source, dict) else (source, None)
        names.append(text(path) + (f" <small>{text(role)}</small>" if role else ""))
    return "<br>".join(names) or ABSENT


def _grouped(item: Any) -> Any:
    return f"{item:,}" if isinstance(item, int) and not isinstance(item, bool) else item


def _mark(flag: bool) -> str:
    return '<span class="right">✓ yes</span>' if flag else '<span class="absent">no</span>'
