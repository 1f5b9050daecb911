from __future__ import annotations

import numpy as np

from hf_recipes.data.inspection.histogram import histogram
from hf_recipes.data.inspection.inspection import inspect_data
from hf_recipes.data.inspection.round_trip import RoundTrip
from hf_recipes.data.inspection.terminal import bars, render_terminal

EXAMPLES = [
    {"file": "o.jsonl", "row": 4},
    {"file": "o.jsonl", "row": 9, "detail": "null"},
    {"file": "p.jsonl", "row": 1},
]


def test_verdicts_come_last_and_learned_text_is_marked(varied, tokenizer):
    trip = RoundTrip("orders", rows=4, answers=4)
    trip.fail("orders.jsonl:3", "lost", "a", "b")
    lines = render_terminal(inspect_data(varied, tokenizer, batches=1, round_trips=[trip])).splitlines()
    assert lines[-1].startswith("STOP: 1 of 4 rows of orders")
    assert sum("«" in line for line in lines) == 8  # a batch of eight samples
    assert any(line.startswith("orders: 3 of 4 rows come back from tokens as they went in") for line in lines)
    assert any(line.startswith("── batch 1 (step 1): 8 × ") for line in lines)


def test_colour_only_when_asked(varied, tokenizer):
    inspection = inspect_data(varied, tokenizer, batches=1)
    assert "\033" not in render_terminal(inspection)
    assert "\033[32m" in render_terminal(inspection, color=True)
    assert "«" not in render_terminal(inspection, color=True)
    assert "«" not in render_terminal(inspection, samples=False)


def test_ledger_shares_and_likeness_are_shown(prepare, tokenizer):
    data = prepare(
        [(f"How many? {n}", f"{n} pens") for n in range(20)],
        source={
            "read": 30,
            "dropped": {"empty answer": {"count": 10, "examples": EXAMPLES}},
            "changed": {"html": {"count": 2, "examples": EXAMPLES[:1]}},
            "duplicates": {"exact": 1, "near": 2},
        },
        general_share={
            "unit": "tokens",
            "asked": 0.15,
            "reached": 0.1502,
            "by": {"rows": 0.2, "tokens": 0.1502, "supervised_tokens": 0.1},
        },
        leakage={"prompt": {"count": 2, "examples": [{"eval": "e:1", "train": "t:2"}]}},
    )
    text = render_terminal(inspect_data(data, tokenizer, batches=0))
    squeezed = " ".join(text.split())
    assert "orders dropped 10 empty answer o.jsonl:4; 9 (null); p.jsonl:1" in squeezed
    assert "orders changed 2 html o.jsonl:4" in squeezed
    assert "all general reached 20.00% 15.02% 10.00%" in squeezed
    assert "all general asked 15.00%" in squeezed
    assert "orders near duplicates 2" in squeezed
    assert "eval prompts that are in training 2 eval e:1, train t:2" in squeezed


def test_bars_mark_the_limit():
    lengths = histogram(np.array([1, 1, 1, 1, 40]), bins=4)
    # Forty lengths in four bins: ten each is a round width, so 0–9 … 40–49.
    assert lengths.edges == [0, 10, 20, 30, 40, 50]
    shown = bars(lengths, max_length=48)
    assert shown[0] == f"   0–9  {'█' * 40} 4"
    assert shown[4] == f"  40–49 {'█' * 10} 1  ← max_length 48"
    assert bars(lengths, max_length=64)[-1] == "  64 max_length"
