"""The ways a run ends early on purpose; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Wrong use: the message is one sentence that says what is wrong, where, and what to do.

    Verbs print it without a traceback and exit with 2. In a distributed run it must be raised on all ranks alike,
    so that no rank waits for another.
    """

    exit_code = 2


class NothingToDo(UserError):
    """What was asked for is there already; the message says where. Not an error to whoever starts a command again."""

    exit_code = 0


class CheckFailed(Exception):
    """A check ran and its answer is no (a checkpoint is damaged, training was stopped by a guard): exit code 1."""

    exit_code = 1


class Preempted(BaseException):
    """A run was asked to stop (a signal, a deadline, a notice of its machine), saved, and can be resumed. 75 is
    EX_TEMPFAIL of sysexits.h: try again later.

    As `KeyboardInterrupt` it comes at any point, and is no `Exception`: whoever explains what went wrong there, such as
    a model that cannot be loaded, would take it for that.
    """

    exit_code = 75


class ErrorOfOneRank(UserError):
    """Raised on one rank while the others go on, so that the launcher has to end them."""


def file_problem(error: OSError) -> str:
    """One sentence for what the file system answered (full disk, no permission, a file where a directory should be)."""
    name = f"'{error.filename}'" if error.filename else "a file"
    return f"{name} cannot be read or written: {error.strerror or error}."


def first_line(error: BaseException | str) -> str:
    """The first line of what an error says, without its full stop, to stand within a sentence of ours; the name of its
    type where it says nothing (of an empty text: ``no reason given``)."""
    said = str(error).strip()
    if said:
        return said.splitlines()[0].rstrip(". ")
    return type(error).__name__ if isinstance(error, BaseException) else "no reason given"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest of `known`, or an empty string when none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""
