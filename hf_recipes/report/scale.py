"""How numbers are written, and when a logarithm shows more."""

from __future__ import annotations

import math

from hf_recipes.report.series import Values

NOTHING = "–"  # stands where there is no value
LOG_RATIO = 50.0  # beyond this, the small values of a linear axis lie on its floor


def wants_log(values: Values) -> bool:
    """Whether positive values span so much that a logarithmic axis is needed to read the small ones."""
    return bool(len(values)) and bool(values.min() > 0) and bool(values.max() / LOG_RATIO > values.min())


def number(value: float) -> str:
    """A number as short as its reader needs: four significant digits; ``nan`` and ``inf`` as they are."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".replace("-0", "0")
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time span in the unit that its reader thinks in."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
