from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_views import BARE, DEVICES, GIB, GRID, HOSTILE, NOTHING_FITS, QLORA_7B, UNKNOWN_RUN, bar

from hf_recipes.core.errors import file_problem
from hf_recipes.plan.pictures.parts import colours
from hf_recipes.plan.pictures.png import write_png


def pixels(view, directory: Path) -> np.ndarray:
    """The picture as rows of red, green and blue from 0 to 255."""
    from matplotlib.image import imread

    file = write_png(view, directory / "plan.png")
    assert [each.name for each in directory.iterdir()] == ["plan.png"]
    return (imread(file)[:, :, :3] * 255).round().astype(int)


def painted(picture: np.ndarray, colour: str) -> np.ndarray:
    """Where exactly this colour is."""
    return (picture == [int(colour[place : place + 2], 16) for place in (1, 3, 5)]).all(axis=2)


@pytest.mark.parametrize(
    ("view", "height"),
    # 0.9 inches of head; each panel 1.25 and 0.46 a row, memory one row more; 120 dots an inch.
    [
        (QLORA_7B, 0.9 + (1.25 + 0.46 * 5) + (1.25 + 0.46 * 5) + (1.25 + 0.46 * 5)),
        (NOTHING_FITS, 0.9 + (1.25 + 0.46 * 3) + (1.25 + 0.46) + (1.25 + 0.46 * 2)),
        (HOSTILE, 0.9 + (1.25 + 0.46 * 3) + (1.25 + 0.46) + (1.25 + 0.46 * 5)),
        (BARE, 0.9),
    ],
)
def test_any_plan_gives_a_picture_of_its_size_that_is_not_blank(view, height, tmp_path):
    picture = pixels(view, tmp_path)
    assert picture.shape[1] == 1320
    assert abs(picture.shape[0] - 120 * height) <= 1
    assert (picture < 128).all(axis=2).sum() > 300  # dark: letters, lines
    assert (picture[:, [0, -1]] == 255).all()  # nothing is cut at the sides


def test_bars_are_as_long_as_their_parts(tmp_path):
    parts = {"weights": 4.0, "activations": 12.0}
    view = replace(BARE, limit_bytes=20 * GIB, bars=(bar("alone", chosen=True, **parts),))
    picture = pixels(view, tmp_path)
    paint = colours(list(parts))
    rows = [y for y in range(picture.shape[0]) if painted(picture[y : y + 1], paint["weights"]).sum() > 60]
    row = rows[3]  # above its figures
    lengths = {name: painted(picture[row : row + 1], paint[name]).sum() for name in parts}
    assert lengths["activations"] / lengths["weights"] == pytest.approx(3, rel=0.02)
    dashes = np.flatnonzero(painted(picture, "#1b1f24").sum(axis=0) > 40)  # the limit, of 20 GiB
    start = np.flatnonzero(painted(picture[row : row + 1], paint["weights"])[0])[0]
    assert (dashes.mean() - start) / lengths["weights"] == pytest.approx(5, rel=0.02)


def test_what_does_not_fit_has_its_own_colour(tmp_path):
    only = replace(BARE, limit_bytes=QLORA_7B.limit_bytes, grid=GRID)
    assert painted(pixels(only, tmp_path), "#f6ddcb").mean() > 0.1
    assert not painted(pixels(replace(only, limit_bytes=1000 * GIB), tmp_path), "#f6ddcb").any()


def test_devices_without_prices_or_hours_are_drawn(tmp_path):
    only = replace(BARE, devices=DEVICES[3:5])
    assert painted(pixels(only, tmp_path), "#c62828").any()  # does not fit
    assert not painted(pixels(replace(only, devices=DEVICES[3:4]), tmp_path), "#c62828").any()
    untimed = replace(BARE, devices=UNKNOWN_RUN.devices[:1])
    assert not painted(pixels(untimed, tmp_path), "#c62828").any()
    assert painted(pixels(replace(BARE, devices=UNKNOWN_RUN.devices), tmp_path), "#c62828").any()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        write_png(BARE, tmp_path / "file" / "plan.png")
    assert "file" in file_problem(caught.value)
