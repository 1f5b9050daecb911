"""What watching a run costs: time spent in the callbacks of hf_recipes, the event log among them, as a share of a step.

    python benchmarks/watching_cost.py RECIPE [--key value …]

Trains the recipe as `hf-recipes sft` does, a stopwatch around every hook of every callback of ours. Verification of
a checkpoint is told apart, in seconds a save: how often a run saves is its own choice (ten times by default).
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Any

from transformers import TrainerCallback

from hf_recipes.core.log import show_on_console
from hf_recipes.core.versions import stack_versions
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.build_run import build_run
from hf_recipes.training.environment import use_all_cores
from hf_recipes.training.setup import set_up

HOOKS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
A_SAVE = ("on_save",)  # what belongs to a save rather than to a step


def main() -> None:
    show_on_console()
    recipe = load_recipe(sys.argv[1], sys.argv[2:])
    use_all_cores()
    trainer = build_run(set_up(recipe)).trainer
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__module__.startswith("hf_recipes"):
            put_stopwatches(callback, seconds, calls)
    started = time.perf_counter()
    trainer.train()
    whole, steps = time.perf_counter() - started, trainer.state.global_step
    of_steps = {key: value for key, value in seconds.items() if key[1] not in A_SAVE}
    for (callback, hook), value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value < 1e-3:
            break
        print(f"{callback:24} {hook:24} {calls[callback, hook]:5} calls {1e3 * value:9.1f} ms")
    print(f"{steps} steps, {whole:.1f} s with saving and evaluation, {whole / steps:.3f} s a step")
    print(f"callbacks and event log: {100 * sum(of_steps.values()) / whole:.3f} % of it")
    saves = max(1, calls.get(("CheckpointKeeper", "on_save"), 0))
    print(f"manifest and verification: {sum(seconds.values()) - sum(of_steps.values()):.2f} s in {saves} saves")
    print(stack_versions())


def put_stopwatches(callback: Any, seconds: dict[tuple[str, str], float], calls: dict[tuple[str, str], int]) -> None:
    """Hide each hook of an instance behind one that measures it."""
    for hook in HOOKS:
        inner = getattr(callback, hook)
        key = (type(callback).__name__, hook)

        def timed(*args: Any, _inner: Any = inner, _key: tuple[str, str] = key, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return _inner(*args, **kwargs)
            finally:
                seconds[_key] += time.perf_counter() - started
                calls[_key] += 1

        setattr(callback, hook, timed)


if __name__ == "__main__":
    main()
