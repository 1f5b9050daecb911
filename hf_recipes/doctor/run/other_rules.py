"""Causes beside the curves: how the run ended, its data, its ranks, its speed, its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hf_recipes.doctor.run.case import AlarmSeen, Case
from hf_recipes.doctor.run.cause import Cause
from hf_recipes.doctor.run.read_case import number

_MUCH_DROPPED, _MUCH_CUT = 0.2, 0.2
_ONE_ANSWER = 0.99
_LONG_WAIT = 0.2
_SHARE_SLACK = 0.02
_OF_FORGETTING = ("forgetting", "general")
_OF_OTHER_RULES = frozenset({"non_finite", "loss", "grad_norm", "overfit", "schedule", "trainable", "ranks"})


def on_end(case: Case) -> Iterator[Cause]:
    """A run that was stopped, refused, or shows no sign of life."""
    if case.silent:
        yield Cause(
            "silent",
            88,
            "the run was killed or hangs",
            "look at the end of its log (hf-recipes doctor FILE.log), and resume_from_checkpoint: last",
            (case.silent,),
        )
    if case.code == 2:
        when = "to go on" if case.replay.losses else "before it began"
        yield Cause("refused", 95, f"the run was refused {when}", "what the sentence says", (case.ended,))
    elif case.code not in (None, 0, 75):
        yield Cause(
            "stopped",
            51,
            f"the run stopped with code {case.code}",
            "what the sentence says; then resume_from_checkpoint: last",
            (case.ended,),
        )
    elif case.code == 75:
        yield Cause(
            "preempted",
            20,
            "the run was asked to stop, saved and can go on",
            "resume_from_checkpoint: last",
            (case.ended,),
        )


def on_preflight(case: Case) -> Iterator[Cause]:
    """What the overfit test before the run named."""
    for one in case.preflight:
        what, change = (str(one.get(name) or "") for name in ("what", "cure"))
        yield Cause(
            "overfit_test", 94, "the overfit test before the run failed", change or "hf-recipes overfit", (what,)
        )


def on_ranks(case: Case) -> Iterator[Cause]:
    """Ranks that were lost, late, or differ."""
    for one in case.rang("ranks")[:1]:
        lost = one.verdict in ("gone", "silent")
        change = "the log of that rank says why; the same data, seed and package versions on all"
        what, advice = _told(one)
        yield Cause("ranks", 92 if lost else 75, "the ranks do not go together", advice or change, (what,))


def on_data(case: Case) -> Iterator[Cause]:
    """What data.json tells: dropped and cut rows, one answer, leakage, shares that were not reached."""
    told = case.data.get("sources")
    sources = [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []
    train = case.data.get("train")
    if isinstance(train, Mapping) and train.get("rows") and train.get("supervised_tokens") == 0:
        yield Cause(
            "all_masked",
            97,
            "no token of the training set is learned from: all labels are masked",
            "hf-recipes inspect shows what is masked, and why (the template, max_length, assistant_only_loss)",
            (f"{train['rows']} rows, 0 supervised tokens",),
        )
    for source in sources:
        yield from _on_source(source)
    leaked = _count(_part(case.data, "leakage", "exact"))
    if leaked:
        yield Cause(
            "leakage",
            40,
            "evaluation rows also stand in the training set: its loss is too good",
            "clean: {duplicates: exact}, or group_by to keep relatives on one side",
            (f"{leaked} rows in both",),
        )
    share = case.data.get("general_share")
    if isinstance(share, Mapping):
        asked, reached = _figure(share.get("asked")), _figure(share.get("reached"))
        if asked and reached is not None and asked - reached > _SHARE_SLACK:
            yield Cause(
                "general_share",
                25,
                "less general data is mixed in than was asked for",
                "a larger general source, or max_repeats",
                (f"{asked:.1%} asked, {reached:.1%} reached",),
            )


def _on_source(source: Mapping[str, Any]) -> Iterator[Cause]:
    name, read = str(source.get("source", "?")), _figure(source.get("read")) or 0.0
    dropped = source.get("dropped")
    reasons = (
        {str(key): _figure(value) or 0.0 for key, value in dropped.items()} if isinstance(dropped, Mapping) else {}
    )
    lost = sum(reasons.values())
    if read and lost > _MUCH_DROPPED * read:
        why = ", ".join(f"{reason} {count:g}" for reason, count in sorted(reasons.items(), key=lambda one: -one[1])[:3])
        yield Cause(
            "dropped_rows",
            45,
            f"{lost / read:.0%} of the rows of '{name}' were dropped",
            "hf-recipes inspect shows them; max_length and clean: decide about most",
            (why,),
        )
    cut = (_figure(source.get("truncated")) or 0.0) + (_figure(source.get("shortened")) or 0.0)
    if read and cut > _MUCH_CUT * read:
        yield Cause(
            "cut_rows",
            35,
            f"{cut / read:.0%} of the rows of '{name}' were cut",
            "a larger max_length, or overlong: split",
            (f"{cut:g} of {read:g} rows",),
        )
    common = _figure(_part(source, "most_common_answer", "share"))
    if common and common > _ONE_ANSWER:
        yield Cause(
            "one_answer",
            45 if source.get("role") == "general" else 85,
            f"nearly all rows of '{name}' have the same answer: only it is learned",
            "balance the data (balance_by: FIELD at the source)",
            (f"{common:.1%} of the rows",),
        )


def on_speed(case: Case) -> Iterator[Cause]:
    """Waiting for data, and memory that grows."""
    waits = case.rang("throughput", "data_wait")
    if waits or (case.data_wait or 0.0) > _LONG_WAIT:
        told = f"steps wait for data {case.data_wait:.0%} of their time" if case.data_wait else _told(waits[0])[0]
        yield Cause(
            "data_wait", 25, "the device waits for data", "dataloader_num_workers: 4; hf-recipes prepare ahead", (told,)
        )


def on_missed_gate(case: Case) -> Iterator[Cause]:
    """An evaluation whose gate is not met, however healthy the curves are."""
    if not case.missed:
        return
    forgot = any(sentence.startswith(_OF_FORGETTING) for sentence in case.missed)
    change = (
        "less training (num_train_epochs, learning_rate), more general rows (role: general, general_share)"
        if forgot
        else "more or other rows, num_train_epochs, learning_rate; the answers are in RUN_DIR/evaluation/"
    )
    yield Cause("gate", 60, "the evaluation missed its gate", change, case.missed)


def on_checkpoints(case: Case) -> Iterator[Cause]:
    """Checkpoints that are not verified though others are."""
    if case.unverified:
        yield Cause(
            "unverified",
            30,
            "some checkpoints carry no mark of verification",
            "hf-recipes verify RUN_DIR/NAME, and resume from one that is",
            (", ".join(case.unverified[:4]),),
        )


def on_other_alarms(case: Case) -> Iterator[Cause]:
    """Alarms that no other rule speaks of, one of each watcher."""
    told: set[str] = set()
    for one in case.alarms:
        if one.detector in _OF_OTHER_RULES or one.detector in told or one.detector == "throughput":
            continue
        told.add(one.detector)
        what, advice = _told(one)
        name = one.detector or "unnamed"
        yield Cause(name, 30, f"an alarm of the {name} watch", advice or "what the alarm says", (what,))


def _told(one: AlarmSeen) -> tuple[str, str]:
    """What an alarm saw, and what it advised."""
    what, _, advice = one.message.partition(" What to do: ")
    return f"alarm at step {one.step}: {what.rstrip('.')}", advice.rstrip(".")


def _part(values: Mapping[str, Any], first: str, second: str) -> Any:
    inner = values.get(first)
    return inner.get(second) if isinstance(inner, Mapping) else None


def _count(value: Any) -> int:
    found = value.get("count") if isinstance(value, Mapping) else value
    return int(_figure(found) or 0)


def _figure(value: Any) -> float | None:
    """A finite number; None for anything else that a damaged or foreign file holds."""
    figure = number(value) if isinstance(value, (int, float)) else None
    return figure if figure is not None and math.isfinite(figure) else None
