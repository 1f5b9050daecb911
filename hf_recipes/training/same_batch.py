"""A resumed run meets the rows the unbroken one would have met: the Trainer counts its place in the data in steps, so
the global batch stays what it was, whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.checkpoints.manifest import DamagedManifest, read_manifest
from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main
from hf_recipes.training.fit import divisors_downwards
from hf_recipes.training.same_run import record_of_run

if TYPE_CHECKING:
    from trl import SFTConfig

    from hf_recipes.recipe.resolve import Recipe

_BATCH_KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class Batch:
    """What meets in one optimizer step: rows a rank computes at once × how often before a step × ranks."""

    micro: int
    accumulation: int
    ranks: int

    @property
    def rows(self) -> int:
        """The global batch."""
        return self.micro * self.accumulation * self.ranks

    def __str__(self) -> str:
        return f"{self.micro} a device × {self.accumulation} accumulated × {self.ranks}"


@dataclass(frozen=True)
class WrittenBatch:
    """The global batch a checkpoint was written with, and by how many ranks."""

    rows: int
    ranks: int


def written_batch(checkpoint: Path) -> WrittenBatch | None:
    """What a checkpoint's manifest says of its batch; of older ones, what the run.json beside it says, where that is of
    the same number of ranks; None where neither does."""
    try:
        manifest = read_manifest(checkpoint)
    except DamagedManifest:
        return None
    if manifest is None:
        return None
    batch = manifest.extra.get("batch")
    if isinstance(batch, dict) and isinstance(batch.get("global_batch_size"), int):
        return WrittenBatch(batch["global_batch_size"], manifest.world_size)
    record = record_of_run(checkpoint.absolute().parent)
    if isinstance(record.get("global_batch_size"), int) and record.get("world_size") == manifest.world_size:
        return WrittenBatch(record["global_batch_size"], manifest.world_size)
    return None


def fit_batch(rows: int, now: Batch, *, open_micro: bool) -> Batch | None:
    """The same `rows` a step on the ranks there are now: with the micro-batch as it is and another accumulation; with
    `open_micro` (it is chosen by memory later) also with a smaller one. None: no such batch."""
    if rows % now.ranks:
        return None
    share = rows // now.ranks
    sizes = [size for size in divisors_downwards(share) if size <= now.micro] if open_micro else [now.micro]
    return next((Batch(size, share // size, now.ranks) for size in sizes if share % size == 0), None)


def keep_global_batch(recipe: Recipe, arguments: SFTConfig, checkpoint: Path | None) -> None:
    """Set ``gradient_accumulation_steps`` in `arguments` so that another number of ranks takes steps of as many rows as
    before; warn where the recipe's batch was changed on the same ranks. To be called on every rank, before the trainer
    is built.

    Raises:
        UserError: the ranks there are cannot make that batch; it names the numbers that can.
    """
    if checkpoint is None:
        return
    if arguments.ignore_data_skip:
        logger.warning("ignore_data_skip: the epoch begins anew, rows already met in it are met again.")
    written, changed = from_main(lambda: (written_batch(checkpoint), _is_changed(recipe, checkpoint)))
    ranks = data_parallel_ranks(arguments)
    now = Batch(arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps, ranks)
    if written is None or written.rows == now.rows:
        return
    if written.ranks == now.ranks and changed:
        _tell_other_batch(checkpoint, written.rows, now, arguments.train_sampling_strategy)
        return
    fitted = fit_batch(written.rows, now, open_micro=bool(recipe.get("auto_micro_batch")))
    if fitted is None:
        raise UserError(_cannot_make(checkpoint, written, now))
    arguments.per_device_train_batch_size = fitted.micro
    arguments.gradient_accumulation_steps = fitted.accumulation
    logger.warning(
        "The global batch stays at the %d rows that '%s' was written with by %s: %s (the recipe's own numbers, %s, "
        "make %d).",
        written.rows,
        checkpoint,
        _processes(written.ranks),
        fitted,
        now,
        now.rows,
    )


def _is_changed(recipe: Recipe, checkpoint: Path) -> bool:
    """Whether the recipe's batch is another than that of the run's last attempt; also where that is not known."""
    before = record_of_run(checkpoint.absolute().parent).get("recipe")
    return before is None or any(before.get(key) != recipe.values.get(key) for key in _BATCH_KEYS)


def _tell_other_batch(checkpoint: Path, rows: int, now: Batch, order: Any) -> None:
    if order == "group_by_length":
        place = "rows are grouped into other batches, so some of this epoch are met again and others left out"
    elif now.rows < rows:
        place = "rows already met in this epoch are met again"
    else:
        place = "rows of this epoch that lie between are left out"
    logger.warning(
        "'%s' was written with %d rows a step, this run takes %d (%s): schedule and place in the data are counted in "
        "steps, so the run's length in epochs changes, and %s; set the batch back to go on exactly.",
        checkpoint,
        rows,
        now.rows,
        now,
        place,
    )


def _cannot_make(checkpoint: Path, written: WrittenBatch, now: Batch) -> str:
    """One sentence with the micro-batches, and the numbers of processes, that make the batch."""
    cures = []
    if written.rows % now.ranks == 0:
        micros = sorted(divisors_downwards(written.rows // now.ranks))
        cures.append(f"set per_device_train_batch_size to {_or(micros)}")
    if written.rows % now.micro == 0:
        cures.append(f"start with {_or(sorted(divisors_downwards(written.rows // now.micro)))} processes")
    else:
        cures.append(f"start with {_processes(written.ranks)} and the micro-batch it had")
    return (
        f"'{checkpoint}' was written with {written.rows} rows a step by {_processes(written.ranks)}, which "
        f"{_processes(now.ranks)} of {now.micro} rows a device cannot make: {', or '.join(cures)}."
    )


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


def _or(numbers: list[int]) -> str:
    """``1, 2 or 4``; of many the first ones."""
    *most, last = map(str, numbers[:8])
    return f"{', '.join(most)} or {last}" if most else last
