"""How a run stands, in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hf_recipes.core.errors import Preempted
from hf_recipes.core.events import absent_rank
from hf_recipes.report.comparison import missed_conditions
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.scale import duration
from hf_recipes.report.series import as_number

_SILENT_SECONDS = 300.0  # a run may save or evaluate for minutes without a word …
_SILENT_TIMES = 3.0  # … and then as long again as it has done before


@dataclass(frozen=True)
class Verdict:
    """`css`: ok, warn, bad or open; `word` and `sentence` say it; `running` until the run has ended."""

    css: str
    word: str
    sentence: str
    running: bool = False


def verdict(record: RunRecord, now: float | None = None) -> Verdict:
    """Healthy, finished with alarms, stopped and why, or still running; `now` is the clock in Unix seconds."""
    rang = len(record.history.alarms())
    alarms = f"{rang} alarm{'s' if rang != 1 else ''}"
    if not _is_of_this_attempt(record):
        return _unfinished(record, rang, time.time() if now is None else now)
    sentence = str(record.status.get("sentence", "")) or "the run ended"
    code = record.status.get("code")
    if code == 0 and (missed := missed_conditions(record.evaluation)):
        return Verdict("warn", "Below its gate", f"{sentence}; {'; '.join(missed)}")
    if code == 0 and not rang:
        return Verdict("ok", "Healthy", f"{sentence}, no alarm")
    if code == 0:
        return Verdict("warn", f"Finished with {alarms}", sentence)
    if code == Preempted.exit_code:
        return Verdict("warn", "Stopped on request", sentence)
    word = "Stopped" if code == 1 else "Refused" if code == 2 else "Interrupted" if code == 130 else "Ended badly"
    return Verdict("bad", word, sentence)


def _is_of_this_attempt(record: RunRecord) -> bool:
    """Whether status.json tells of the newest attempt, and not of one before it that was resumed since."""
    begins = [as_number(event.get("time")) for event in record.history.events if event.get("kind") == "begin"]
    ended = as_number(record.status.get("time"))
    newest = begins[-1] if begins else None
    return bool(record.status) and (ended is None or newest is None or ended >= newest)


def _unfinished(record: RunRecord, rang: int, now: float) -> Verdict:
    history = record.history
    with_alarms = f", {rang} alarm{'s' if rang != 1 else ''}" if rang else ""
    if history.last_step is None:
        return Verdict("open", "Not started", "no event is there yet", running=True)
    planned = f" of {history.max_steps}" if history.max_steps else ""
    place = f"step {history.last_step}{planned}"
    ends = [event for event in history.of_kind("end") if event.get("attempt", 1) == history.last_attempt]
    if ends:
        early = bool(ends[-1].get("stopped_early"))
        word = "Ended early" if early else f"Finished{' with' + with_alarms[1:] if rang else ''}"
        css = "bad" if early else "warn" if rang else "ok"
        return Verdict(css, word if rang or early else "Healthy", f"at {place}{'' if rang else ', no alarm'}")
    if gone := absent_rank(history.standing(), history.last_attempt):
        return Verdict("bad", "Stopped", gone)
    if not history.last_time:
        return Verdict("open", "Not ended", f"at {place}{with_alarms}", running=True)
    seen = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(history.last_time))
    silence = now - history.last_time
    if silence > max(_SILENT_SECONDS, _SILENT_TIMES * history.longest_silence):
        told = f"no sign of life since {seen}, {duration(silence)} before this was written: it was killed, or hangs"
        return Verdict("bad", f"Silent at {place}", told + with_alarms, running=True)
    return Verdict("warn" if rang else "open", "Running", f"at {place}, as of {seen}{with_alarms}", running=True)
