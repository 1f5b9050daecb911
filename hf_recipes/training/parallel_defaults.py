"""What several ranks need set right besides how they share the work; whatever is set or given otherwise is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed

if TYPE_CHECKING:
    from trl import SFTConfig

    from hf_recipes.models.precision import Precision


def set_parallel_defaults(arguments: SFTConfig, layout: Layout, precision: Precision) -> None:
    """Fill in what the recipe leaves open, and say what it gave that is seldom meant.

    Args:
        arguments: changed in place.
        layout: of the run.
        precision: it trains in.
    """
    if layout.ranks == 1:
        return
    if layout.sharding == "fsdp" and layout.tensor == 1:
        _reduce_each_time(arguments)
    logger.info("Gradients are averaged over the ranks in %s.", reduction_dtype(layout, precision))
    if not arguments.average_tokens_across_devices:
        logger.warning(
            "average_tokens_across_devices: false weights each rank alike, however few tokens its rows have: leave it "
            "out, and each token counts alike."
        )
    if not arguments.accelerator_config.even_batches:
        logger.warning(
            "even_batches: false lets a rank run out of rows before the others, which then wait for it: leave it out "
            "(rows of the start then fill the last step of an epoch)."
        )


def check_device(layout: Layout, device: str) -> None:
    """Refuse what accelerate would silently leave undone: over CPU ranks it shards nothing.

    Args:
        layout: of the run.
        device: of the ranks (``cpu``, ``cuda`` …).

    Raises:
        UserError: the layout shards or offloads, and the ranks are CPU ranks.
    """
    by_devices = layout.sharding not in ("none", "ddp") or (layout.tensor > 1 and layout.pipeline == 1)
    if device != "cpu" or not by_devices:
        return
    raise UserError(
        "The recipe's strategy shards over devices, and accelerate shards nothing over CPU ranks: write strategy: ddp, "
        "or pp, on a CPU."
    )


def reduction_dtype(layout: Layout, precision: Precision) -> str:
    """What gradients are summed in between ranks.

    DDP sends them as they are: in fp32, as this package keeps trained weights under autocast. DeepSpeed takes its
    compute dtype (`DeepSpeedEngine.communication_data_type`), FSDP2 what accelerate sets as its policy, the autocast
    dtype too.

    Args:
        layout: of the run.
        precision: it trains in.
    """
    low = "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"
    policy = layout.sharding == "fsdp" and layout.tensor == 1
    return low if policy or uses_deepspeed(layout) else "fp32"


def _reduce_each_time(arguments: SFTConfig) -> None:
    """FSDP2 would keep gradients whole on each rank until a step's last micro-batch."""
    config = arguments.accelerator_config
    given = dict(config.gradient_accumulation_kwargs or {})
    if "sync_each_batch" in given:
        return
    config.gradient_accumulation_kwargs = {**given, "sync_each_batch": True}
    if arguments.gradient_accumulation_steps > 1:
        logger.info(
            "FSDP2 reduces gradients at each micro-batch (sync_each_batch), so that no rank holds all of them; "
            "accelerator_config with gradient_accumulation_kwargs: {sync_each_batch: false} reduces once a step."
        )
