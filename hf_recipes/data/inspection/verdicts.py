"""Findings: what is wrong enough to stop, likely a mistake, or worth knowing; each says what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_recipes.data.inspection.account import count_of, dropped, first_places, notes
from hf_recipes.data.inspection.facts import Inspection, Severity, Verdict
from hf_recipes.data.masking.lengths import is_length_fault

MAX_DROPPED = 0.5
MANY_DROPPED = 0.05
MIN_LEARNED_SHARE = 0.001
MAX_ANSWER_SHARE = 0.99
MANY_ANSWER_SHARE = 0.5
MIN_ANSWERS = 10  # of fewer conversations, one answer's share says nothing
MANY_PADDING = 0.3
MANY_SPACES = 0.05
SHARE_TOLERANCE = 0.01
SAME_FIRST_TOKEN = 0.95
MANY_COPIES = 0.01
_PREAMBLE_SHOWN = 100
PERSONAL_DATA = "personal_data: "


def judge(inspection: Inspection) -> list[Verdict]:
    """All findings, the gravest first."""
    report = inspection.report
    found = [
        *_learned(report),
        *_doubled_bos(inspection),
        *_ends(inspection),
        *_round_trips(inspection),
        *_drops(report),
        *_answers(inspection),
        *_placeholders(inspection),
        *_leaks(report),
        *_shares(report),
        *_padding(inspection),
        *_spaces(inspection),
        *_preamble(inspection),
        *_remarks(inspection),
    ]
    order: Sequence[Severity] = ("stop", "warn", "note")
    return sorted(found, key=lambda verdict: order.index(verdict.severity))


def _learned(report: Mapping[str, Any]) -> Iterator[Verdict]:
    train = report["train"]
    learned, tokens = train["supervised_tokens"], train["tokens"]
    if not learned:
        yield Verdict(
            "stop",
            "No token is learned, so training would change nothing: check that the rows have assistant turns, that "
            "their weights are not 0, and that assistant_only_loss suits the data.",
        )
    elif learned / tokens < MIN_LEARNED_SHARE:
        yield Verdict(
            "stop",
            f"Only {learned} of {tokens} tokens are learned ({learned / tokens:.3%}): check roles and weights of the "
            "turns, or learn the prompts too (assistant_only_loss: false).",
        )


def _doubled_bos(inspection: Inspection) -> Iterator[Verdict]:
    rows = inspection.tokens.doubled_bos
    if rows:
        yield Verdict(
            "stop",
            f"{len(rows)} samples begin with two BOS tokens (first: {rows[0]}): remove one from the chat template, or "
            "from the text.",
        )


def _ends(inspection: Inspection) -> Iterator[Verdict]:
    end = (inspection.report.get("end_of_turn") or {}).get("text")
    for source, (samples, learn_it) in inspection.tokens.ends.items():
        if not learn_it:
            yield Verdict(
                "stop",
                f"The end of a turn, {end!r}, is learned in no conversation of {source}, so the model would never "
                "learn to stop: use a chat template that ends assistant turns with a special token.",
            )
        elif learn_it < samples:
            yield Verdict(
                "warn",
                f"The end of a turn, {end!r}, is not learned in {samples - learn_it} of {samples} conversations of "
                f"{source}: check turns of weight 0 and answers that were cut.",
            )


def _round_trips(inspection: Inspection) -> Iterator[Verdict]:
    for trip in inspection.round_trips:
        if trip.failed:
            first = trip.examples[0]
            yield Verdict(
                "stop",
                f"{trip.failed} of {trip.rows} rows of {trip.source} do not survive the way to tokens and back (first: "
                f"{first['row_id']}, {first['what']}, expected {first['expected']!r}, found {first['found']!r}): check "
                "that tokenizer and chat template belong together.",
            )
        if trip.unknown:
            yield Verdict(
                "warn",
                f"{trip.unknown} of {trip.rows} rows of {trip.source} hold text the tokenizer has no token for: clean "
                "the text, or take a model that knows its script.",
            )
        if trip.altered:
            yield Verdict(
                "note",
                f"{trip.altered} of {max(trip.answers, trip.rows)} answers of {trip.source} are written otherwise than "
                "in the row by the chat template or the tokenizer (trimmed, reasoning left out or added): look at one.",
            )


def _drops(report: Mapping[str, Any]) -> Iterator[Verdict]:
    for source in report["sources"]:
        read, lost = source.get("read", 0), dropped(source)
        if not read or lost / read <= MANY_DROPPED:
            continue
        reason, entry = max(source["dropped"].items(), key=lambda item: count_of(item[1]))
        yield Verdict(
            "stop" if lost / read > MAX_DROPPED else "warn",
            f"{lost} of {read} rows of {source['source']} were dropped, {count_of(entry)} of them because of: {reason} "
            f"(first: {first_places(entry, 1)}): {_drop_advice(reason)}.",
        )


def _drop_advice(reason: str) -> str:
    if is_length_fault(reason):
        return "raise max_length, or set overlong: shorten_prompt or split"
    return "correct the rows, or the setting by which they are dropped"


def _answers(inspection: Inspection) -> Iterator[Verdict]:
    heaviest, conversations = inspection.tokens.heaviest_answer, inspection.tokens.conversations
    if heaviest is None or conversations < MIN_ANSWERS:
        return
    share = heaviest.count / conversations
    if share > MANY_ANSWER_SHARE:
        yield Verdict(
            "stop" if share > MAX_ANSWER_SHARE else "warn",
            f"{share:.1%} of the conversations learn the same answer, {heaviest.text!r}, so always giving it would "
            "look right: balance the rows, or check that the answers are in the right column.",
        )


def _placeholders(inspection: Inspection) -> Iterator[Verdict]:
    found = inspection.tokens.placeholders
    if found:
        shown = ", ".join(f"{answer.text!r} in {answer.count}" for answer in found[:3])
        yield Verdict(
            "note",
            f"Some answers look like none ({shown} conversations; first: {found[0].row_id}): take the rows out, unless "
            "that is the right answer.",
        )


def _preamble(inspection: Inspection) -> Iterator[Verdict]:
    if preamble := inspection.tokens.preamble:
        shown = preamble if len(preamble) <= _PREAMBLE_SHOWN else preamble[: _PREAMBLE_SHOWN - 1] + "…"
        yield Verdict(
            "note",
            f"The chat template begins conversations that have no system turn with words of its own ({shown!r}), here "
            "and when the model is used: give the rows a system turn to say something else.",
        )


def _leaks(report: Mapping[str, Any]) -> Iterator[Verdict]:
    held_out, leakage = report["eval"]["rows"], report.get("leakage") or {}
    for kind, severity, found, advice in _LEAKS:
        if count := count_of(leakage.get(kind)):
            first = first_places(leakage[kind], 1)
            place = f" (first: {first})" if first else ""
            yield Verdict(severity, f"{count} of {held_out} eval samples {found}{place}: {advice}.")


_TAKE_OUT = "take them out of one of the two, or the eval loss measures memory"
_LEAKS: tuple[tuple[str, Severity, str, str], ...] = (
    ("exact", "stop", "stand in the training set too, word for word", _TAKE_OUT),
    ("near", "warn", "nearly stand in the training set too", _TAKE_OUT),
    (
        "prompt",
        "note",
        "share their prompt with a training sample",
        "set group_by of the source, unless it is meant so",
    ),
)


def _shares(report: Mapping[str, Any]) -> Iterator[Verdict]:
    share = report.get("general_share") or {}
    reached, asked = share.get("reached"), share.get("asked")
    if reached is not None and abs(reached - asked) > SHARE_TOLERANCE:
        yield Verdict(
            "warn",
            f"The general share by {share['unit'].replace('_', ' ')} is {reached:.4f} instead of {asked:g}: give more "
            "general data, or ask for less.",
        )


def _padding(inspection: Inspection) -> Iterator[Verdict]:
    share = inspection.padding_share
    if share > MANY_PADDING and inspection.loader.sampling != "group_by_length" and not inspection.packed:
        yield Verdict(
            "warn",
            f"{share:.0%} of all positions are padding: set train_sampling_strategy: group_by_length, or a smaller "
            "per_device_train_batch_size with more accumulation.",
        )


def _spaces(inspection: Inspection) -> Iterator[Verdict]:
    for trip in inspection.round_trips:
        if trip.answers and trip.leading_space / trip.answers > MANY_SPACES:
            yield Verdict(
                "warn",
                f"{trip.leading_space} of {trip.answers} answers of {trip.source} begin with white space in the data, "
                "which the model would learn to write: strip it, unless it is meant (code).",
            )


def _remarks(inspection: Inspection) -> Iterator[Verdict]:
    report, tokens = inspection.report, inspection.tokens
    end = report.get("end_of_turn") or {}
    if end and not end.get("is_eos", True):
        yield Verdict(
            "note",
            f"Assistant turns end with {end['text']!r}, which is not the tokenizer's eos_token: engines that read only "
            "the latter must be told to stop at it.",
        )
    if tokens.answers >= MIN_ANSWERS and tokens.first_tokens[0].share > SAME_FIRST_TOKEN:
        first = tokens.first_tokens[0]
        yield Verdict(
            "note",
            f"{first.share:.1%} of the answers begin with the token {first.text!r}: right for a fixed format such as "
            "JSON, otherwise a prefix that belongs to the prompt.",
        )
    found = [
        f"{count_of(entry)} rows of {source} with {what.removeprefix(PERSONAL_DATA)}"
        for source, what, entry in notes(report)
        if what.startswith(PERSONAL_DATA)
    ]
    if found:
        yield Verdict(
            "warn",
            f"What looks like personal data stands in the rows ({'; '.join(found)}): check that it may be learned.",
        )
    copies = sum(count_of(source.get("duplicates", {}).get("exact")) for source in report["sources"])
    cleaning = report.get("settings", {}).get("clean") or {}
    if copies > MANY_COPIES * sum(source.get("kept", 0) for source in report["sources"]) and not _drops_copies(
        cleaning
    ):
        yield Verdict(
            "note", f"{copies} rows repeat others exactly and count double: set clean: {{duplicates: exact}}."
        )
    if not report["eval"]["rows"]:
        yield Verdict("note", "Nothing is held out, so overfitting would go unseen: set eval_share.")
    if len(inspection.batches) < inspection.batches_asked:
        yield Verdict(
            "note",
            f"An epoch has {len(inspection.batches)} batches, fewer than the {inspection.batches_asked} asked for.",
        )


def _drops_copies(cleaning: Mapping[str, Any]) -> bool:
    return cleaning.get("duplicates", "off") != "off"
