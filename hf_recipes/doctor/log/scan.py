"""Reads a log once and keeps what is known of it: messages recognised, errors that are not, and its curves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from hf_recipes.callbacks.out_of_memory import phase_of
from hf_recipes.doctor.log.lines import Block, blocks
from hf_recipes.doctor.log.numbers_seen import NumbersSeen
from hf_recipes.doctor.log.ranks import whose
from hf_recipes.doctor.log.signature import Signature
from hf_recipes.doctor.log.signatures import SIGNATURES
from hf_recipes.doctor.log.tracebacks import Tracebacks

_MOST_RANKS = 64  # of one message that are kept; of more the number
_SHOWN = 300
_LOGS_AFTER = 3  # more than another rank can print while one is already lost
# A row of training data that was printed: what its text says is not said of this run.
_ROW = re.compile(
    r"""\W{0,3}\{(?!.{0,8000}['"]record['"]).{0,200}?['"](prompt|completion|messages|conversations|instruction|chosen|"""
    r"""rejected|question|answer|input_ids|content|text)['"]\s*:"""
)
# Without one of these in it a block holds no traceback, no curve and no launcher's account.
_TRIGGERS = (b"Traceback", b'File "', b".py:", b"Error", b"loss", b"Root Cause", b"rank      :", b"%|")
_BAR = re.compile(r"^\s*(?:[\w .]+: +)?\d{1,3}%\|[^|]*\|[^\[\]]*\[[^\]]*\]")
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank")


@dataclass(frozen=True)
class Hit:
    """A known message: its name, where it first stands for a rank, whose it is, its line, what it tells, and how many
    logs of training and summaries of a whole training stand before it."""

    name: str
    line: int
    rank: int | None
    text: str
    groups: Mapping[str, str] = field(default_factory=dict)
    phase: str = "elsewhere"
    logs_before: int = 0
    ends_before: int = 0

    @property
    def signature(self) -> Signature:
        """What is known of it."""
        return SIGNATURES[self.name]


class Scan:
    """Fed block by block. Its memory does not grow with the log.

    Attributes:
        hits: the first of each message and rank; of one that training survived the latest.
        counts: lines by message.
        tracebacks, numbers: see their classes.
        root_rank: the rank that torchrun calls the first to fail.
        lines: of the log.
    """

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.counts: dict[str, int] = {}
        self.tracebacks = Tracebacks()
        self.numbers = NumbersSeen()
        self.root_rank: int | None = None
        self.lines = 0
        self._seen: dict[str, dict[int | None, int]] = {}
        self._after_root_cause = False
        self._needles = [(needle, needle.encode(), name) for name, one in SIGNATURES.items() for needle in one.needles]

    def see(self, block: Block) -> None:
        """Look at a block: first for what could be in it at all, then line by line."""
        self.lines = block.first_line + block.data.count(b"\n")
        active = [(needle, name) for needle, raw, name in self._needles if raw in block.data]
        if not active and not any(trigger in block.data for trigger in _TRIGGERS):
            return
        for number, text in block.lines():
            self._see_line(number, text, active)

    def _see_line(self, number: int, text: str, active: list[tuple[str, str]]) -> None:
        if "%|" in text and (bar := _BAR.match(text)) and bar.end() < len(text):  # words right behind a progress bar
            self.numbers.see(text[: bar.end()])
            text = text[bar.end() :]
        rank, words = whose(text)
        self.tracebacks.see(number, rank, words)
        self._see_root_cause(words)
        if not rank:
            self.numbers.see(words)
        if active and _ROW.match(words):
            return
        for needle, name in active:
            if needle in words:
                self._try(name, number, rank, words)

    def _try(self, name: str, number: int, rank: int | None, words: str) -> None:
        groups = SIGNATURES[name].match(words)
        if groups is None:
            return
        kind = SIGNATURES[name].kind
        if kind != "notice":
            self.tracebacks.explained(number, rank, only_this=kind == "summary")
        self.counts[name] = self.counts.get(name, 0) + 1
        ranks = self._seen.setdefault(name, {})
        place = ranks.get(rank)
        if len(ranks) >= _MOST_RANKS if place is None else not self.survived(self.hits[place]):
            return
        phase = phase_of(self.tracebacks.frames(rank)) if SIGNATURES[name].phase_cures else "elsewhere"
        logs, ends = self.numbers.logs, self.numbers.ends
        hit = Hit(name, number, rank, words.strip()[:_SHOWN], groups, phase, logs, ends)
        if place is None:
            ranks[rank] = len(self.hits)
            self.hits.append(hit)
        else:  # the one before stopped nothing: this one may have
            self.hits[place] = hit

    def survived(self, hit: Hit) -> bool:
        """Whether training went on after a message, or came to its end: then it stopped nothing, or was no message of
        the run's own (a row of data that was printed). Told of rank 0 and of logs without ranks, since rank 0 alone
        prints how training goes."""
        if hit.rank:
            return False
        return self.numbers.ends > hit.ends_before or self.numbers.logs - hit.logs_before >= _LOGS_AFTER

    def _see_root_cause(self, words: str) -> None:
        if "Root Cause (first observed failure)" in words:
            self._after_root_cause = True
        elif self._after_root_cause and (found := _ROOT_RANK.match(words)):
            self.root_rank, self._after_root_cause = int(found[1]), False


def scan(stream: BinaryIO) -> Scan:
    """Read a log to its end."""
    result = Scan()
    for block in blocks(stream):
        result.see(block)
    result.tracebacks.close()
    return result
