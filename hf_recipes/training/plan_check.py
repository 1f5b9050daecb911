"""Before anything is loaded: does a step fit on this rank's device? By the planner's estimate, told and kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import gather, is_main
from hf_recipes.models.placement import sharded_by, under_deepspeed
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.estimate import MemoryEstimate, estimate_memory
from hf_recipes.plan.memory.optimizer import UnknownOptimizer
from hf_recipes.plan.settings import Checkpointing, TrainingSettings
from hf_recipes.plan.strategy.advice import Change, find_changes
from hf_recipes.plan.strategy.candidates import CHECKPOINTINGS, Wishes
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.names import strategy_of
from hf_recipes.plan.strategy.search import Job
from hf_recipes.training.arguments import global_batch_size
from hf_recipes.training.free_memory import free_bytes
from hf_recipes.training.launched import run_layout
from hf_recipes.training.memory_use import MemoryUse
from hf_recipes.training.plan_job import (
    load_config,
    memory_dict,
    planned_recipe,
    recipe_geometry,
    recipe_settings,
    settings_dict,
)

if TYPE_CHECKING:
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.training.setup import Setup

_SHORTEST = 8  # tokens; rows are padded to it


class PlanCheck:
    """The estimate of one run, where the recipe asks for it (`is_on`): first of what it needs with the shortest rows,
    before anything is loaded; then with the longest row there is, before the weights are; at the end beside what was
    measured."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._planned = planned_recipe(setup.recipe, setup.hardware)
        self._geometry: Geometry | None = None
        self._record: dict[str, Any] | None = None
        self._memory: MemoryUse | None = None
        self.is_on: bool = setup.ours.plan_check == "on"

    def check_any(self, max_length: int | None) -> None:
        """Stop where not even the shortest rows would fit; warn where those of `max_length` would not.

        To be called on every rank, before the data are prepared. Raises `UserError` as `check`.
        """
        if not self.is_on:
            return
        try:
            self._checked(_SHORTEST, "the shortest rows")
        except UnknownOptimizer as error:
            logger.warning("Whether this run fits is not known: %s", error)
            self.is_on = False
            return
        if max_length is None:
            return
        _, needed, has = self._estimated(max_length, 1.0)
        if needed.device_bytes > has:
            logger.warning(
                "Rows of max_length %d would need %s on each rank, %s are free: whether the run fits depends on the "
                "longest row there is.",
                max_length,
                _size(needed.device_bytes),
                _size(has),
            )

    def check(self, tokens: int, supervised_share: float = 1.0) -> None:
        """Stop where a step of rows of `tokens` cannot fit; else tell the estimate, and keep it in plan.json.

        To be called on every rank, before the weights are loaded. Does nothing under ``plan_check: off``.

        Args:
            tokens: of the longest row.
            supervised_share: labelled tokens among all.

        Raises:
            UserError: what is needed, what is there, what to change.
        """
        if not self.is_on:
            return
        settings, needed, has = self._checked(tokens, f"the longest row has {tokens}", supervised_share)
        self._tell(settings, needed, has)
        self._memory = MemoryUse(self._setup.arguments.device)

    def add_measured(self, seconds: float | None, steps: int) -> None:
        """Put what the run took beside what was planned (rank 0's).

        Args:
            seconds: of the training; None where it is not known.
            steps: that were made in this attempt.
        """
        if self._record is None or self._memory is None or not is_main():
            return
        measured = {
            "memory_bytes": self._memory.peak_bytes(),
            "device": self._setup.arguments.device.type,
            "seconds": seconds,
            "steps": steps,
        }
        self._setup.run.write(self._setup.run.plan_json, {**self._record, "measured": measured})

    def _checked(
        self, tokens: int, why: str, supervised_share: float = 1.0
    ) -> tuple[TrainingSettings, MemoryEstimate, float]:
        settings, needed, has = self._estimated(tokens, supervised_share)
        if needed.device_bytes > has:
            raise UserError(self._refusal(settings, needed, has, why))
        return settings, needed, has

    def _estimated(self, tokens: int, supervised_share: float) -> tuple[TrainingSettings, MemoryEstimate, float]:
        """The way the run will take, its memory, and what is free for it on the fullest rank."""
        geometry = self._geometry = self._geometry or self._read_geometry()
        settings = recipe_settings(self._planned, geometry, tokens, supervised_share=supervised_share)
        layout = run_layout(self._setup.arguments)
        if settings.loss == "chunked" and (layout.sharding in ("fsdp", "zero3") or layout.tensor > 1):
            settings = replace(settings, loss="trl_chunked")  # a sharded head is not ours to read
        has = min(gather(float(free_bytes(self._setup.arguments.device))))
        return *self._first_that_fits(geometry, settings, has), has

    def _read_geometry(self) -> Geometry:
        _, config = load_config(self._setup.recipe)
        self._planned = self._planned.with_config(config)
        return recipe_geometry(self._planned, config)

    def _first_that_fits(
        self, geometry: Geometry, settings: TrainingSettings, has: float
    ) -> tuple[TrainingSettings, MemoryEstimate]:
        """The first of the settings that the run may still choose between; the least of them where none fits."""
        layout = run_layout(self._setup.arguments)
        best: tuple[TrainingSettings, MemoryEstimate] | None = None
        for candidate in self._open_settings(settings):
            found = estimate_memory(geometry, candidate, layout.one_replica, device=self._setup.arguments.device.type)
            if best is None or found.device_bytes < best[1].device_bytes:
                best = candidate, found
            if found.device_bytes <= has:
                return candidate, found
        assert best is not None
        return best

    def _open_settings(self, settings: TrainingSettings) -> Iterator[TrainingSettings]:
        """What `fit_in_memory` will choose between: nothing where the recipe says it, or the model is sharded."""
        recipe = self._setup.recipe
        sharded = sharded_by(self._setup.arguments) or under_deepspeed()
        ways = (settings.checkpointing,) if "activation_checkpointing" in recipe.given or sharded else self._ways()
        micro_batch = 1 if recipe.get("auto_micro_batch") and not sharded else settings.micro_batch
        for way in ways:
            yield replace(settings, checkpointing=way, micro_batch=micro_batch)

    def _ways(self) -> tuple[Checkpointing, ...]:
        return CHECKPOINTINGS if self._setup.arguments.device.type != "cpu" else CHECKPOINTINGS[:-1]

    def _refusal(self, settings: TrainingSettings, needed: MemoryEstimate, has: float, why: str) -> str:
        assert self._geometry is not None
        layout, device = run_layout(self._setup.arguments), self._setup.arguments.device.type
        wishes = Wishes(
            strategy=strategy_of(layout),
            micro_batch=settings.micro_batch,
            checkpointing=settings.checkpointing if "activation_checkpointing" in self._setup.recipe.given else None,
            offload=device != "cpu",
            headroom=0.0,
        )
        # What a step costs plays no part in what fits.
        link = 0.0 if device == "cpu" else 1.0
        machines = Machines(has, 1.0, 1.0, host_link=link, per_node=layout.ranks_per_node, nodes=layout.nodes)
        job = Job(self._geometry, settings, machines, global_batch_size(self._setup.arguments), wishes)
        changes = find_changes(job, partial(estimate_memory, device=device))
        return (
            f"This run cannot fit: a step of {settings.micro_batch} × {settings.tokens} tokens ({why}) needs "
            f"{_size(needed.device_bytes)} on each rank ({needed.peak_phase.replace('_', ' ')}: {_largest(needed)}), "
            f"and {_size(has)} are free: {_advice(changes)}; plan_check: off tries it anyway."
        )

    def _tell(self, settings: TrainingSettings, needed: MemoryEstimate, has: float) -> None:
        logger.info(
            "Plan: a step of %d × %d tokens needs %s on each rank (%s: %s), %s are free.",
            settings.micro_batch,
            settings.tokens,
            _size(needed.device_bytes),
            needed.peak_phase.replace("_", " "),
            _largest(needed),
            _size(has),
        )
        self._record = _record(settings, needed, has)
        if is_main():
            self._setup.run.write(self._setup.run.plan_json, self._record)


def _advice(changes: Sequence[Change]) -> str:
    if not changes:
        return "no single change makes it fit, take a smaller model or a larger machine"
    words = [f"{change.words} (needs {_size(change.needs_bytes)})" for change in changes]
    return f"change {'one of these' if len(words) > 1 else 'this'}: {', '.join(words)}"


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.1f} MiB"


def _largest(needed: MemoryEstimate) -> str:
    parts = sorted(needed.phases[needed.peak_phase].items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {_size(size)}" for name, size in parts if size)


def _record(settings: TrainingSettings, needed: MemoryEstimate, has: float) -> dict[str, Any]:
    return {
        "schema": 1,
        "settings": settings_dict(settings),
        "memory": {**memory_dict(needed), "free_bytes": has},
    }


def planned_row(longest: int, recipe: Recipe) -> int:
    """Tokens of the longest row the model will see: packed rows are filled up to max_length."""
    return int(recipe.get("max_length", longest)) if recipe.get("packing") else longest


def training_pace(trainer: Any) -> tuple[float | None, int]:
    """Seconds of the training, where its log tells them, and the step it ended at."""
    told = [each["train_runtime"] for each in trainer.state.log_history if "train_runtime" in each]
    return (float(told[-1]) if told else None), int(trainer.state.global_step)
