"""Whatever is in a log: its lines come out clean, numbered, and in constant memory."""

from __future__ import annotations

import io
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.doctor.log.lines import BLOCK_BYTES, LINE_BYTES, blocks
from hf_recipes.doctor.log.ranks import whose


def lines(data: bytes) -> list[tuple[int, str]]:
    return [line for block in blocks(io.BytesIO(data)) for line in block.lines()]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1).map(str.rstrip)))
def test_plain_lines_come_out_as_they_went_in(texts):
    kept = [(number, text) for number, text in enumerate(texts, 1) if text and not text.endswith(("it]", "it/s]"))]
    found = [one for one in lines("\n".join(texts).encode()) if not one[1].endswith(("it]", "it/s]"))]
    assert found == kept


@given(st.binary(max_size=4096))
def test_any_bytes_make_lines_without_controls(data):
    for number, text in lines(data):
        assert 1 <= number <= data.count(b"\n") + 1
        assert "\x1b" not in text
        assert text.isprintable() or "\t" in text or not text.isascii()


def test_colours_and_bars_are_taken_out():
    data = b"\x1b[31mError\x1b[0m: red\n 1%|a| 1/99 [00:01<00:01, 1.0it/s]\r 2%|a| 2/99 [00:01<00:01, 1.0it/s]\rend\n"
    assert lines(data) == [(1, "Error: red"), (2, " 2%|a| 2/99 [00:01<00:01, 1.0it/s]"), (2, "end")]


def test_a_line_without_end_is_cut_and_the_next_one_keeps_its_number():
    data = b"first\n" + b"x" * (5 * BLOCK_BYTES) + b"\nlast\n"
    found = lines(data)
    assert [number for number, _ in found] == [1, 2, 3]
    assert found[2][1] == "last"
    assert len(found[1][1]) == LINE_BYTES


class Endless(io.RawIOBase):
    """So many bytes of one line, made while they are read."""

    def __init__(self, count: int) -> None:
        self.left = count

    def read(self, size: int = -1) -> bytes:
        given = min(size, self.left)
        self.left -= given
        return b"x" * given


def test_memory_does_not_grow_with_a_line_of_64_mb():
    tracemalloc.start()
    count = sum(1 for _ in blocks(Endless(64 << 20)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1
    assert peak < 8 * BLOCK_BYTES


def test_ranks_are_read_from_what_launchers_put_before_a_line():
    assert whose("[rank3]: Traceback") == (3, "Traceback")
    assert whose("[default12]:words") == (12, "words")
    assert whose("[80746] [rank4]:[E321 ProcessGroupNCCL.cpp:607] x") == (4, "[E321 ProcessGroupNCCL.cpp:607] x")
    assert whose("7: srun -l") == (7, "srun -l")
    assert whose("[1,5]<stderr>: mpi") == (5, "mpi")
    assert whose("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog")[0] == 1
    assert whose("no rank at all: 3") == (None, "no rank at all: 3")
