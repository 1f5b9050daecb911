"""How a plan's numbers are written, alike in all its pictures."""

from __future__ import annotations

from collections.abc import Callable

Band = tuple[float, float, float]  # low, expected, high

GIB = 2**30
UNIT = "Memory is in GiB (2^30 bytes), which the makers of cards print as GB."
NOTHING = "–"  # stands where there is no value


def gib(size: float, digits: int = 1) -> str:
    """Bytes in GiB, without the unit; from a thousand on, where none matters, without decimals."""
    return f"{size / GIB:,.{digits if size < 1000 * GIB else 0}f}"


def share(part: float, whole: float) -> str:
    """A part of a whole in per cent; ``<1 %`` where there is something but little."""
    if whole <= 0:
        return NOTHING
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 0.5 else f"{percent:,.0f} %"


def short(value: float) -> str:
    """A number that is only known roughly (hours, kWh): two significant digits, integers from 10 on."""
    if value >= 9.95:
        return f"{value:,.0f}"
    if value >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2g}" if value >= 0.001 or value == 0 else "<0.001"


def price(value: float) -> str:
    """Money without its currency: cents below 100 only."""
    if value >= 99.995:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.005 or value == 0 else "<0.01"


def band(values: Band, written: Callable[[float], str]) -> tuple[str, str]:
    """What is expected, and from where to where it may be; empty where all are written alike."""
    low, expected, high = map(written, values)
    return expected, "" if low == high else f"{low}–{high}"


def banded(values: Band, written: Callable[[float], str]) -> str:
    """`band` in one: ``6.1 (4.9–8.2)``."""
    expected, reach = band(values, written)
    return f"{expected} ({reach})" if reach else expected


def money(values: Band, currency: str) -> str:
    """`banded` with the currency's sign or code before."""
    return f"{currency}{'' if len(currency) == 1 else ' '}{banded(values, price)}"


def words(key: str) -> str:
    """A key as words: ``optimizer_step`` → ``optimizer step``."""
    return key.replace("_", " ")
