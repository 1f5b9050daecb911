"""Make a training step fit in memory with nothing given away: micro-batch and activation checkpointing, chosen by what
activations were measured to take and what memory is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hf_recipes.core.log import logger
from hf_recipes.core.ranks import gather
from hf_recipes.core.wrapped import base_of
from hf_recipes.models.placement import place, sharded_by, under_deepspeed
from hf_recipes.models.precision import Precision
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.activations import ActivationCost, measure_activations
from hf_recipes.training.checkpointing import ALL_LAYERS, NONE, Checkpointing, choose_checkpointing
from hf_recipes.training.free_memory import MARGIN, free_bytes, training_state_bytes

if TYPE_CHECKING:
    from trl import SFTConfig


class Rows(Protocol):
    """What must be known of the training rows (see `training.rows.TrainingRows`)."""

    @property
    def longest(self) -> int: ...

    @property
    def packed(self) -> bool: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True)
class Room:
    """What activations of one rank may take, and what a batch of them costs. `tokens` is the longest row's length."""

    cost: ActivationCost
    budget_bytes: float
    tokens: int
    host_is_apart: bool

    def fits(self, way: Checkpointing, rows: int) -> bool:
        """Whether a micro-batch of `rows` longest rows fits, checkpointed this way."""
        return way.kept_bytes(self.cost, rows, self.tokens) <= self.budget_bytes


def fit_in_memory(model: Any, recipe: Recipe, arguments: SFTConfig, precision: Precision, rows: Rows) -> dict[str, Any]:
    """Decide what the recipe leaves open (``activation_checkpointing``, ``auto_micro_batch``); set it in `arguments`.

    To be called on every rank, before the trainer is built. Under FSDP and DeepSpeed nothing is measured: the model is
    not yet cut into the ranks' shares.

    Args:
        rows: What is trained on: the longest row, whether rows are packed, how many there are (0: not known).

    Returns:
        What was decided, for run.json.
    """
    open_checkpointing = "activation_checkpointing" not in recipe.given
    open_batch = bool(recipe.get("auto_micro_batch"))
    if not (open_checkpointing or open_batch):
        return {}
    if sharded_by(arguments) or under_deepspeed():
        logger.info("Activation checkpointing and micro-batch stay as given: the model is sharded over the ranks.")
        return {}
    room = _measure_room(model, arguments, precision, rows)
    if open_batch:
        way = NONE if open_checkpointing or not arguments.activation_checkpointing else ALL_LAYERS
        _choose_micro_batch(arguments, room, way, rows.count)
    if open_checkpointing:
        _choose_checkpointing(model, arguments, room)
    return {
        "per_device_train_batch_size": arguments.per_device_train_batch_size,
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps,
        "activation_checkpointing": arguments.activation_checkpointing,
        "activation_checkpointing_kwargs": arguments.activation_checkpointing_kwargs,
        "activation_bytes_per_token": room.cost.inside_per_token + room.cost.outside_per_token,
        "activation_budget_bytes": room.budget_bytes,
    }


def _measure_room(model: Any, arguments: SFTConfig, precision: Precision, rows: Rows) -> Room:
    place(model, arguments.device)
    cost = measure_activations(model, packed=rows.packed, autocast_dtype=precision.autocast_dtype)
    states = training_state_bytes(model, str(arguments.optim), arguments.world_size)
    budget = min(gather(free_bytes(arguments.device) * (1 - MARGIN) - states))
    multiple = 8  # rows are padded to it
    return Room(cost, budget, -(-rows.longest // multiple) * multiple, arguments.device.type != "cpu")


def _choose_checkpointing(model: Any, arguments: SFTConfig, room: Room) -> None:
    rows = arguments.per_device_train_batch_size
    if not can_checkpoint(model):
        return
    way, fits = choose_checkpointing(room.cost, rows, room.tokens, room.budget_bytes, host_is_apart=room.host_is_apart)
    if way is not NONE:
        arguments.activation_checkpointing = arguments.gradient_checkpointing = True
        arguments.activation_checkpointing_kwargs = arguments.gradient_checkpointing_kwargs = dict(way.kwargs or {})
    kept, whole = (each.kept_bytes(room.cost, rows, room.tokens) for each in (way, NONE))
    told = f"a step of {rows} × {room.tokens} tokens keeps {readable(whole)} of activations"
    if way is not NONE:
        told += f", {readable(kept)} with it"
    told += f"; {readable(room.budget_bytes)} are free for them"
    if fits:
        logger.info("Activation checkpointing: %s (%s).", way.name, told)
    else:
        logger.warning(
            "Activation checkpointing: %s, and yet a step may not fit (%s): lower per_device_train_batch_size or "
            "max_length.",
            way.name,
            told,
        )


def can_checkpoint(model: Any) -> bool:
    """Whether layers of this model may be computed again; with a trained prefix PEFT refuses it."""
    config = getattr(model, "active_peft_config", None)
    has_prefix = config is not None and config.is_prompt_learning
    return bool(base_of(model).supports_gradient_checkpointing) and not has_prefix


def _choose_micro_batch(arguments: SFTConfig, room: Room, way: Checkpointing, available: int) -> None:
    """Take the largest divisor of the rank's share of the global batch whose activations fit, and that there are rows
    for."""
    before = arguments.per_device_train_batch_size
    share = before * arguments.gradient_accumulation_steps
    sizes = [size for size in divisors_downwards(share) if size <= (available or share)]
    rows = next((size for size in sizes if room.fits(way, size)), 1)
    arguments.per_device_train_batch_size = rows
    arguments.gradient_accumulation_steps = share // rows
    logger.info(
        "Micro-batch: %d × %d accumulated (given: %d × %d), the largest that fits: %s of activations, %s are free.",
        rows,
        share // rows,
        before,
        share // before,
        readable(way.kept_bytes(room.cost, rows, room.tokens)),
        readable(room.budget_bytes),
    )


def divisors_downwards(number: int) -> list[int]:
    """All divisors of a positive number, the largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def readable(size: float) -> str:
    """``1.2 GiB`` or ``34 MiB``."""
    return f"{size / 2**30:.1f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:.0f} MiB"
