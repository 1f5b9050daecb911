from __future__ import annotations

import pytest
from plan_views import BARS, GIB, bar

from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.parts import colours, ink_on, parts_of


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0004, "<0.001"), (0.0213, "0.021"), (0.996, "1.0"), (6.14, "6.1"), (9.96, "10"), (1234.5, "1,234")],
)
def test_rough_numbers(value, shown):
    assert words.short(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.00"), (0.001, "<0.01"), (2.679, "2.68"), (14.2, "14.20"), (99.999, "100"), (1500.4, "1,500")],
)
def test_prices(value, shown):
    assert words.price(value) == shown


def test_bands_and_money():
    assert words.banded((4.9, 6.1, 8.2), words.short) == "6.1 (4.9–8.2)"
    assert words.banded((6.1, 6.1, 6.1), words.short) == "6.1"
    assert words.money((1, 2, 3), "$") == "$2.00 (1.00–3.00)"
    assert words.money((20, 20, 20), "EUR") == "EUR 20.00"


def test_memory_is_in_gib():
    assert words.gib(24 * 10**9) == "22.4"
    assert words.gib(1.5 * GIB, 2) == "1.50"
    assert words.gib(1043.3 * GIB, 2) == "1,043"


@pytest.mark.parametrize(("part", "whole", "shown"), [(0, 5, "0 %"), (1, 1000, "<1 %"), (1, 3, "33 %"), (1, 0, "–")])
def test_shares(part, whole, shown):
    assert words.share(part, whole) == shown


def test_parts_stand_in_one_order_and_empty_ones_nowhere():
    bars = [bar("a", context=1, surprise=2, weights=3, logits=0), bar("b", gradients=1, context=1)]
    assert parts_of(bars) == ["weights", "gradients", "surprise", "context"]
    assert parts_of([]) == []


def luminance(colour: str) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_part_has_its_own_colour_on_which_figures_can_be_read():
    parts = [*parts_of(BARS), "one", "two", "three", "four", "five"]
    paint = colours(parts)
    assert len(set(paint.values())) == len(parts)
    assert colours(["weights"])["weights"] == paint["weights"]
    for colour in paint.values():
        light, dark = sorted((luminance(colour), luminance(ink_on(colour))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2, level AA
