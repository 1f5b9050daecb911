"""What an hour of a device costs: dated defaults from public price lists (`prices.json`), or the user's own price."""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_recipes.core.errors import UserError

Purchase = Literal["on-demand", "reserved", "spot"]
PURCHASES: tuple[Purchase, ...] = ("on-demand", "reserved", "spot")
PRICES_FILE = Path(__file__).with_name("prices.json")


@dataclass(frozen=True)
class ListPrice:
    """One vendor's price: USD of one device for an hour, as its list said on `date`."""

    key: str
    kind: Purchase
    usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True)
class Price:
    """USD of one device for an hour: what is planned with, between the cheapest and the dearest known.

    `source` says whose it is; a default is the median of the lists, of an even number the dearer of the middle two.
    """

    usd_per_hour: float
    cheapest: float
    dearest: float
    source: str


@functools.cache
def list_prices() -> tuple[ListPrice, ...]:
    """All prices of the table."""
    return tuple(ListPrice(**each) for each in json.loads(PRICES_FILE.read_text(encoding="utf-8"))["prices"])


def price_of(key: str, purchase: Purchase = "on-demand", own: float | None = None) -> Price | None:
    """The price of an accelerator.

    Args:
        key: of the catalogue.
        purchase: on-demand, reserved (a long commitment) or spot (may be taken back).
        own: the user's price for a device and hour; it takes the place of the table's.

    Returns:
        None where neither a list nor the user has one.

    Raises:
        UserError: the user's price is negative or no number.
    """
    if own is not None:
        if not 0 <= own < float("inf"):
            raise UserError(f"--price: {own} is no price: give USD for one device and hour, such as 2.5.")
        return Price(own, own, own, "given")
    found = [each for each in list_prices() if each.key == key and each.kind == purchase]
    if not found:
        return None
    rates = [each.usd_per_hour for each in found]
    lists = "1 price list" if len(found) == 1 else f"{len(found)} price lists"
    dates = sorted(each.date for each in found)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return Price(statistics.median_high(rates), min(rates), max(rates), f"{purchase}, {lists} of {when}")
