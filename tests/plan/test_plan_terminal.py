from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_views import BARE, GIB, GRID, HOSTILE, LIMIT, NOTHING_FITS, PARAMETERS, QLORA_7B, UNKNOWN_RUN, bar

from hf_recipes.plan.pictures.data import LengthGrid, MemoryBar
from hf_recipes.plan.pictures.terminal import PLAIN_BLOCKS, render


def section(shown: str, title: str) -> list[str]:
    """The lines under a heading."""
    (found,) = [part for part in shown.split("\n\n") if part.startswith(f"== {title}")]
    return found.splitlines()[1:]


def row(shown: str, title: str, name: str) -> list[str]:
    """The words of a table's row."""
    (found,) = [line for line in section(shown, title) if re.match(rf"\s*{re.escape(name)}\s", line)]
    return found.split()


def test_a_table_of_memory_by_hand():
    view = replace(
        BARE,
        device="card",
        limit_bytes=20 * GIB,
        bars=(bar("alone", chosen=True, weights=5.0, activations=10.0),),
    )
    # 80 columns: 80 - 13 - 28 = 39 for a bar that reaches to 20 GiB * 1.04, so 5 GiB are 9.4, 15 GiB 28.1 and the limit
    # stands at 37.5.
    assert section(render(view, 80), "Memory of one device at its peak, backward") == [
        "alone",
        "part           GiB  of limit  │ = limit",
        "-----------  -----  --------  ---------------------------------------",
        "weights       5.00      25 %  █████████                             │",
        "activations  10.00      50 %           ███████████████████          │",
        "total        15.00      75 %  ████████████████████████████          │",
        "card leaves a job 20.00 GiB: 5.00 GiB stay free.",
    ]


def test_all_parts_of_a_plan_are_there_with_their_numbers():
    shown = render(QLORA_7B, 110)
    assert shown.startswith(QLORA_7B.title + "\n")
    assert QLORA_7B.sentence in shown
    assert "global batch  16 rows = micro-batch 4 × 1 rank × 4 accumulated" in shown
    for part, count in PARAMETERS.items():
        assert row(shown, "Parameters by part", part)[1] == f"{count:,}"
    assert row(shown, "Parameters by part", "all")[1] == "6,746,804,224"
    assert row(shown, "Memory of one device", "activations")[1:4] == ["8.41", "36", "%"]
    assert row(shown, "Memory of one device", "total")[1] == "13.47"
    assert "10.03 GiB stay free." in shown
    assert row(shown, "Strategies", "full")[5:8] == ["100.9", "no", "optimizer"]
    assert row(shown, "Strategies", "full")[-1].endswith(">")
    told = ["13.5", "22.0", "20", "16–27", "14.20", "11.40–19.20", "1.4"]
    assert section(shown, "Devices side by side")[3].split()[-7:] == told
    assert "NVIDIA GTX 1650          Even at micro-batch 1 with all layers recomputed 2.1 GiB are missing." in shown
    assert row(shown, "Memory over row length", "2,048") == ["2,048", "9.0", "13.2", "21.6", "38.4×", "72.0×", "4"]
    assert row(shown, "Memory over row length", "1,024")[3] == "13.2*"
    assert "full fine-tune on one device: 77.4 GiB are missing." in shown
    assert "Prices are on-demand, read on 2026-11-28." in shown


def test_what_a_rank_keeps_on_the_host_is_told():
    offloaded = replace(QLORA_7B, bars=(replace(QLORA_7B.bars[2], chosen=True),))
    assert "each rank keeps 9.40 GiB in the machine's own memory" in " ".join(render(offloaded, 120).split())


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("view", [QLORA_7B, NOTHING_FITS, BARE, HOSTILE])
def test_no_line_is_wider_than_asked(view, width):
    assert max(map(len, render(view, width).splitlines())) <= width


@pytest.mark.parametrize(("asked", "given"), [(20, 80), (500, 120)])
def test_tables_need_some_room_and_no_more_than_some(asked, given):
    assert render(QLORA_7B, asked) == render(QLORA_7B, given)


def test_where_nothing_fits_the_nearest_strategy_is_told():
    shown = render(NOTHING_FITS, 100)
    told = section(shown, "Memory of one device at its peak, forward")
    assert told[0] == "full, ZeRO-3 × 8"
    assert told[-1] == "RTX 4090 leaves a job 23.50 GiB: 106.90 GiB are missing."
    assert section(shown, "Devices")[2].split()[3:] == ["1", "does", "not", "fit", "5.9", "3.8"]
    assert row(shown, "Memory over row length", "512") == ["512", "40.0×", "50.0×", "none"]


def test_fitting_may_depend_on_more_than_the_device():
    shown = render(UNKNOWN_RUN, 80)
    told = row(shown, "Strategies", "ZeRO-3")
    assert told[told.index("9.4") + 1] == "no"
    table = section(shown, "Devices")
    assert table[0].split() == ["device", "n", "fits", "needs", "has"]  # no hours, no cost
    assert [line.split()[-3] for line in table[2:4]] == ["yes", "no"]
    assert "GeForce RTX 4090  one device, micro-batch 4: It fits as it is." in shown
    assert "does not fit" in "".join(section(render(UNKNOWN_RUN, 120), "Devices"))


def test_a_plan_of_nothing_is_its_title_and_sentence():
    assert render(BARE, 80) == "nothing\n=======\nThere is nothing to plan."


def test_micro_batches_without_room_are_named():
    sizes = tuple(range(1, 31))
    wide = replace(QLORA_7B, grid=LengthGrid((512,), sizes, [[size * GIB for size in sizes]]))
    told = section(render(wide, 80), "Memory over row length")
    left_out = [int(size) for size in re.findall(r"\d+", told[-1])]
    assert [int(size) for size in re.findall(r"batch (\d+)", told[0])] + left_out == list(sizes)
    assert told[2].split()[-1] == "23"  # of 23.5 GiB, a GiB a row


def test_no_control_character_reaches_the_terminal():
    assert render(HOSTILE, 100).replace("\n", "").isprintable()


def test_a_terminal_without_block_characters_gets_plain_ones():
    shown = render(QLORA_7B, 100, PLAIN_BLOCKS)
    assert "#####" in shown
    assert not set("█│") & set(shown)


SIZES = st.integers(0, 200 * GIB)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["weights", "optimizer", "logits", "other"]), SIZES, min_size=1), SIZES)
def test_any_parts_are_told_with_their_sum(parts, limit):
    view = replace(BARE, limit_bytes=limit, bars=(MemoryBar("any", parts, "forward", True),))
    shown = render(view, 100)
    assert row(shown, "Memory of one device", "total")[1] == f"{sum(parts.values()) / GIB:.2f}"
    for part, size in parts.items():
        if size > 0:
            assert row(shown, "Memory of one device", part)[1] == f"{size / GIB:.2f}"
    assert ("are missing" in shown) == (sum(parts.values()) > limit)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SIZES, min_size=3, max_size=3), min_size=2, max_size=2))
def test_exactly_the_cells_that_do_not_fit_are_marked(needed):
    view = replace(BARE, limit_bytes=LIMIT, grid=LengthGrid((512, 1024), (1, 2, 4), needed))
    shown = render(view, 100)
    for name, sizes in zip(("512", "1,024"), needed, strict=True):
        assert ["×" in cell for cell in row(shown, "Memory over row length", name)[1:4]] == [s > LIMIT for s in sizes]


def test_the_room_imports_neither_torch_nor_matplotlib():
    code = "import sys, hf_recipes.plan.pictures.page, hf_recipes.plan.pictures.png, hf_recipes.plan.pictures.terminal"
    loaded = subprocess.run([sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True)
    assert "hf_recipes.plan.pictures.png" in loaded.stdout.split()
    assert not {"torch", "transformers", "matplotlib", "numpy"} & set(loaded.stdout.split())


def test_the_grid_of_the_example_has_an_edge():
    fits = [needed <= LIMIT for cells in GRID.needed_bytes for needed in cells]
    assert any(fits)
    assert not all(fits)
