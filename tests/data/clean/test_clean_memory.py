"""Cleaning is a stream: its memory does not grow with the rows."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLEAN = """
import resource, sys
from hf_recipes.data.clean.cleaner import Cleaner
from hf_recipes.data.clean.config import CleanConfig
from hf_recipes.data.reading.formats import Example

rules = Cleaner(CleanConfig.from_mapping(True))
changed = 0
for number in range(int(sys.argv[1])):
    text = f"<p>Row {number}: cafÃ© &amp; more</p>\\x00" if number % 50 == 0 else f"Row {number} is clean already. " * 8
    changed += bool(rules.clean(Example(text=text)).changes)
print(changed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_the_memory_of_100_000_rows_is_that_of_10_000():
    peaks = {}
    for rows in (10_000, 100_000):
        done = subprocess.run([sys.executable, "-c", CLEAN, str(rows)], capture_output=True, text=True, check=True)
        changed, peak_kb = map(int, done.stdout.split())
        assert changed == rows // 50
        peaks[rows] = peak_kb / 1024
    # 90,000 more rows of 0.2 kB are 18 MB of text; the allocator's own noise is below 2 MB.
    assert peaks[100_000] < peaks[10_000] + 4, peaks
