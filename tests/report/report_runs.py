"""Run directories with known numbers, written as the event log writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_recipes.core.files import json_safe

START = 1_795_975_658.0


def write_events(directory: Path, events: Iterable[dict[str, Any]], mode: str = "w") -> None:
    """Append or write ``events.jsonl``; a run.json makes the directory a run."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "run.json").exists():
        (directory / "run.json").write_text("{}")
    with open(directory / "events.jsonl", mode, encoding="utf-8") as file:
        file.writelines(json.dumps(json_safe(event), allow_nan=False) + "\n" for event in events)


def event(kind: str, step: int, **values: Any) -> dict[str, Any]:
    """One event, two seconds a step after START."""
    return {"schema": 1, "attempt": 1, "rank": 0, "time": START + 2.0 * step, "kind": kind, "step": step, **values}


def training(steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """A healthy run that logs everything there is to log, at every step, with evaluations, saves and samples."""
    random_ = random.Random(seed)
    events = [event("begin", 0, max_steps=steps)]
    for step in range(1, steps + 1):
        wave = math.exp(random_.gauss(0, 0.25))
        events.append(
            event(
                "log",
                step,
                loss=0.4 + 2.2 * math.exp(-4 * step / steps) + random_.gauss(0, 0.08),
                grad_norm=0.8 * wave,
                learning_rate=2e-4 * min(1.0, step / (0.04 * steps)) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
                grad_norm_low=0.3,
                grad_norm_median=0.8,
                grad_norm_high=2.1,
                tokens_per_second=5000 + random_.gauss(0, 120),
                memory_gb=11.2 + 0.3 * random_.random(),
                memory_total_gb=24.0,
                data_wait_share=0.03 + 0.02 * random_.random(),
                gpu_utilization=0.84 + 0.05 * random_.random(),
                mfu=0.41 + 0.01 * random_.random(),
                epoch=step / steps,
            )
        )
        if step % max(1, steps // 8) == 0:
            loss = 0.5 + 2.0 * math.exp(-4 * step / steps)
            events.append(event("eval", step, eval_loss=loss, eval_domain_loss=loss - 0.1, eval_general_loss=0.9))
            sample = {"prompt": "Order 3 mugs.", "answer": '{"item": "mug"', "ok": False, "why": "not JSON"}
            good = {
                "prompt": "Order 2 lamps.",
                "answer": '{"item": "lamp"}',
                "reference": '{"item": "lamp"}',
                "ok": True,
            }
            events.append(event("generate", step, samples=[sample, good], format_share=0.5))
            events.append(event("save", step, checkpoint=f"checkpoint-{step}"))
    return events
