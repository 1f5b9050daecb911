"""Which values of the base an adapter is added to: the original's, or those that quantised training saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.export.bases.read import BaseModel
from hf_recipes.export.bases.refuse import quantisation_of
from hf_recipes.export.bases.trained_quantization import TrainedQuantization, need_quantization
from hf_recipes.export.bases.trained_values import stored_quantised, with_trained_values

BaseValues = Literal["original", "dequantized"]


def with_base_values(
    base: BaseModel,
    values: BaseValues,
    *,
    adapter_config: Mapping[str, Any],
    run: Mapping[str, Any],
    quantization: str | TrainedQuantization | None = None,
) -> tuple[BaseModel, str]:
    """The base with the values asked for.

    Args:
        base: as read.
        values: ``original``, or ``dequantized`` for those QLoRA training computed with: on the quantised modules only.
        adapter_config: adapter_config.json, for the task.
        run: run.json beside the adapter; empty without one.
        quantization: how training quantised, in place of what the run recorded.

    Returns:
        The base, and what its values are, for the report: ``original``, ``dequantized`` (a base that is stored
        quantised) or ``dequantized (nf4,double,bf16)``.

    Raises:
        UserError: `values` is neither, or how the base was quantised is not known (see `need_quantization`).
    """
    if values not in ("original", "dequantized"):
        raise UserError(f"--base-values: '{values}' is neither original nor dequantized.")
    if count := stored_quantised(base.tensors):
        if quantization is not None:
            raise UserError(
                f"--quantization: '{base.directory}' is stored quantised, and its own scales are used: leave it out, "
                "or give the 16-bit original with --base."
            )
        logger.info(
            "The base is stored in %s bits: the dequantised values of %d weights are used, the only ones there are.",
            4 if quantisation_of(base.config).get("load_in_4bit") else 8,
            count,
        )
        return base, "dequantized"
    if values == "original":
        if quantization is not None:
            raise UserError("--quantization acts with --base-values dequantized only: give both, or neither.")
        return base, "original"
    settings = need_quantization(run, quantization)
    return with_trained_values(base, settings, adapter_config.get("task_type")), f"dequantized ({settings})"
