"""What a manifest says of the training that wrote it: where it was, how its batches were made, by what software."""

from __future__ import annotations

from typing import Any

from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.versions import stack_versions


def training_facts(args: Any, state: Any, dataloader: Any = None) -> dict[str, Any]:
    """The facts of a run at a save, as plain data.

    Args:
        args, state: the Trainer's.
        dataloader: its training data, prepared; None: the place in the data is not known.
    """
    facts: dict[str, Any] = {
        "epoch": state.epoch,
        "batch": batch_facts(args),
        "seed": args.seed,
        "data_seed": args.data_seed,
        "versions": stack_versions(),
        **_position(args, state, dataloader),
    }
    if args.include_num_input_tokens_seen not in (False, "no"):
        facts["tokens"] = int(state.num_input_tokens_seen)
    return facts


def batch_facts(args: Any) -> dict[str, int]:
    """The global batch, in rows, and its parts."""
    micro, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulated,
        "world_size": args.world_size,
        "global_batch_size": micro * accumulated * data_parallel_ranks(args),
    }


def _position(args: Any, state: Any, dataloader: Any) -> dict[str, Any]:
    """The place in the data as the Trainer counts it when it resumes (epochs, and batches of each rank into the epoch),
    and rows trained so far; a stream without a length is one long epoch."""
    accumulated, batch = args.gradient_accumulation_steps, batch_facts(args)["global_batch_size"]
    batches_an_epoch, rows = _length(dataloader), _length(getattr(dataloader, "dataset", None))
    if not batches_an_epoch:
        into = {"epoch": 0, "batches": state.global_step * accumulated}
        return {"samples": state.global_step * batch, "data_position": into}
    epoch, steps = divmod(state.global_step, -(-batches_an_epoch // accumulated))
    an_epoch = rows or batches_an_epoch * batch // accumulated
    samples = epoch * an_epoch + min(steps * batch, an_epoch)
    return {"samples": samples, "data_position": {"epoch": epoch, "batches": steps * accumulated}}


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None
