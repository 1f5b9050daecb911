"""The page's parts, each from the run's record to an HTML fragment."""

from __future__ import annotations

from typing import Any

from hf_recipes.report.chart import line_chart
from hf_recipes.report.escape import text
from hf_recipes.report.html import ABSENT, facts, folded, inline, note, records, section, table, value, words
from hf_recipes.report.panels import panels
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.scale import number
from hf_recipes.report.series import Series, alarms, as_number, series, timeline

_RAN_KEYS = {
    "method": "method",
    "learning_rate": "learning rate",
    "num_train_epochs": "epochs",
    "max_steps": "max steps",
    "max_length": "max length",
}
_SHORT = 5  # entries of a part that is shown unfolded
_SECRETS = ("token", "password", "secret", "api_key")
Verdict = tuple[str, str, str]


def verdict(record: RunRecord) -> Verdict:
    """How the run ended: a CSS class (ok, bad, open), a word, a sentence."""
    if not record.status:
        return "open", "not ended", "No status.json: the run is still going, or was killed before it could write one."
    sentence = str(record.status.get("sentence", ""))
    code = record.status.get("code")
    if code == 0:
        return "ok", "finished", sentence
    return "bad", "stopped" if code == 1 else "refused" if code == 2 else "ended badly", sentence


def headline(record: RunRecord) -> str:
    """The few numbers that a reader looks for first."""
    kept = timeline(record.events)
    loss, eval_loss = series(kept, "log", "loss"), series(kept, "eval", "eval_loss")
    tiles = [
        ("steps", str(max((event["step"] for event in kept), default=0)) if kept else ABSENT),
        ("training loss, last", _last(loss)),
        ("eval loss, last", _last(eval_loss)),
        _best(eval_loss),
        ("time", _duration(kept)),
        ("alarms", str(len(alarms(record.events)))),
    ]
    items = "".join(f'<div><span class="big">{shown}</span><span>{text(name)}</span></div>' for name, shown in tiles)
    return f'<div class="tiles">{items}</div>'


def what_ran(record: RunRecord) -> str:
    """Model, method, data, machine, versions."""
    if not record.run:
        return section("What ran", note("run.json is not there."))
    run, recipe = record.run, record.recipe
    pairs = [
        ("model", _model(record)),
        *((name, value(recipe.get(key))) for key, name in _RAN_KEYS.items() if key in recipe),
    ]
    pairs.append(("data", _data_names(recipe)))
    for key in ("world_size", "global_batch_size", "trainable_parameters", "total_parameters", "seed"):
        if key in run:
            pairs.append((words(key), value(_grouped(run[key]))))
    pairs += [
        (key, inline(run[key]) if isinstance(run[key], dict) else value(run[key]))
        for key in ("precision", "hardware", "versions")
        if run.get(key)
    ]
    return section("What ran", facts(pairs))


def curves(record: RunRecord) -> str:
    """The charts."""
    drawn = panels(record.events)
    if not drawn:
        return section("Curves", note("events.jsonl is not there, or nothing was logged yet."))
    marks = alarms(timeline(record.events))
    charts = "".join(f'<figure class="chart">{line_chart(panel, marks)}</figure>' for panel in drawn)
    hint = "Dashed red lines: alarms. Red crosses: values that were NaN or infinite; the line breaks there."
    return section("Curves", f'<div class="charts">{charts}</div>' + note(hint))


def alarm_list(record: RunRecord) -> str:
    """Every alarm with what to do about it."""
    found = alarms(record.events)
    if not found:
        told = "No alarm rang." if record.events else "events.jsonl is not there."
        return section("Alarms", note(told))
    rows = [[str(alarm.step), text(alarm.detector), text(alarm.message), str(alarm.attempt)] for alarm in found]
    return section("Alarms", table(["step", "watcher", "what happened and what to do", "attempt"], rows, css="alarms"))


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
    """Every resolved key; the values of secrets are left out."""
    if not record.recipe:
        return section("Recipe", note("run.json holds no recipe."))
    given = record.run.get("given")
    given = set(map(str, given)) if isinstance(given, list) else set()
    rows = [
        [f"<code>{text(key)}</code>", _recipe_value(key, item), "given" if key in given else ""]
        for key, item in sorted(record.recipe.items())
    ]
    return section("Recipe", folded(f"all {len(rows)} resolved keys", table(["key", "value", ""], rows, css="keys")))


def _recipe_value(key: str, item: Any) -> str:
    hidden = item and any(key == word or key.endswith("_" + word) for word in _SECRETS)
    return "(not shown)" if hidden else value(item)


def _last(curve: Series) -> str:
    if curve.bad and (not curve.points or curve.bad[-1][0] > curve.points[-1][0]):
        return f'<span class="wrong">{text(curve.bad[-1][1])}</span>'
    return number(curve.points[-1][1]) if curve.points else ABSENT


def _best(curve: Series) -> tuple[str, str]:
    if not curve.points:
        return "eval loss, best", ABSENT
    step, lowest = min(curve.points, key=lambda point: point[1])
    return f"eval loss, best (step {step})", number(lowest)


def _duration(events: list[dict[str, Any]]) -> str:
    """Wall time over all attempts, from first to last event of each."""
    spans: dict[Any, list[float]] = {}
    for event in events:
        moment = as_number(event.get("time"))
        if moment is not None:
            spans.setdefault(str(event.get("attempt")), []).append(moment)
    seconds = sum(max(moments) - min(moments) for moments in spans.values())
    if not spans:
        return ABSENT
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
