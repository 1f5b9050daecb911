"""Whose words a line is: what launchers put before it."""

from __future__ import annotations

import re

# torch prints [rank3]: before a dying rank's traceback; torchrun --tee and --redirects [default3]: or [host3]: and
# [worker3]:; srun -l "3: "; mpirun -tag-output [1,3]<stdout>:; NCCL [Rank 3] within the message. Log viewers add [812].
_VIEWER = re.compile(r"^\[\d+\] (?=\[(?:rank|default)\d+\])")
_PREFIX = re.compile(
    r"^(?:\[(?:rank|default|worker|host)(?P<torch>\d+)\]:? ?|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?|(?P<srun>\d{1,5}): )"
)
_WITHIN = re.compile(r"\[(?:PG [^\]]*)?Rank (?P<rank>\d+)\]")


def whose(text: str) -> tuple[int | None, str]:
    """The rank that printed a line, where it tells, and the line without what tells it."""
    text = _VIEWER.sub("", text, count=1)
    if found := _PREFIX.match(text):
        number = next(value for value in found.groups() if value is not None)
        return int(number), text[found.end() :]
    if "Rank " in text and (within := _WITHIN.search(text)):
        return int(within["rank"]), text
    return None, text
