"""The notebook runs from top to bottom on the real small model, and shows what it showed when it was written."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "one_fine_tune.ipynb"


@pytest.mark.real_model
@pytest.mark.slow
def test_every_cell_runs(smollm2_dir):
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    printed = []
    for number, cell in enumerate(cells):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        printed.append(out.getvalue())
    everything = "\n".join(printed)
    assert "learned:" in everything and "<|im_end|>" in everything
    assert "sound: True" in everything
    assert "first loss above the last: True" in everything
    assert "checkpoint-4" in everything
    shown = "".join("".join(output.get("text", "")) for cell in cells for output in cell["outputs"])
    # Times and losses differ from machine to machine; the lines without numbers must not.
    steady = [line for line in shown.splitlines() if line and not re.search(r"\d", line)]
    assert steady, "the notebook is stored with its output"
    assert [line for line in steady if line not in everything] == []
