"""Tensor parallelism, as transformers is told of it, and what it cannot do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hf_recipes.core.data_parallel import data_parallel_ranks, degrees
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.plan.layout import Layout
from hf_recipes.recipe.resolve import Recipe

if TYPE_CHECKING:
    from transformers.distributed import DistributedConfig

_WAY_OUT = "take strategy: fsdp or zero3"


def tensor_parallel_config(arguments: Any) -> DistributedConfig | None:
    """How transformers cuts a model while loading it: matrices over the tensor-parallel ranks, and by FSDP2 over what
    remains; None without tensor parallelism.

    Args:
        arguments: the Trainer's.
    """
    tensor, _ = degrees(arguments)
    if tensor == 1:
        return None
    from transformers.distributed import DistributedConfig

    return DistributedConfig(tp_size=tensor, tp_plan="auto", fsdp_size=data_parallel_ranks(arguments))


def check_tensor_parallel(recipe: Recipe, layout: Layout) -> None:
    """Refuse what the parts under tensor parallelism cannot do (transformers 5.24, PEFT 0.21), before anything is
    loaded.

    Args:
        recipe: checked.
        layout: of the run.

    Raises:
        UserError: the method, or a resume.
    """
    if layout.tensor == 1 or layout.pipeline > 1:
        return
    method = recipe.get("method", "lora")
    if method not in ("full", "lora"):
        raise UserError(
            f"strategy: tp trains method: full or lora, not {method} (its tensors are not cut along with the model's): "
            f"{_WAY_OUT}."
        )
    if method == "lora" and layout.data_parallel > 1:
        # `Trainer._sync_replicated_trainable_parameters` passes over the B matrices, which are cut over these ranks.
        raise UserError(
            "strategy: tp with method: lora cannot have data-parallel ranks beside it (the Trainer does not average "
            "the cut LoRA matrices over them): give tensor_parallel_size all ranks, or take strategy: fsdp."
        )
    if recipe.get("resume_from_checkpoint") not in (None, "auto"):
        raise UserError(
            "resume_from_checkpoint: under strategy: tp the Trainer saves no optimizer to go on with: start anew from "
            "the saved model, as model_name_or_path."
        )


def check_context_parallel(recipe: Recipe, layout: Layout) -> None:
    """Refuse what ring attention cannot do, before anything is loaded: it knows one causal mask over the whole row.

    Args:
        recipe: checked.
        layout: of the run.

    Raises:
        UserError: packing, or another attention than sdpa.
    """
    if layout.context == 1:
        return
    if recipe.get("packing"):
        raise UserError(
            "packing: under strategy: cp samples of one row would see each other (ring attention has no mask to keep "
            "them apart): leave it out."
        )
    if (attention := recipe.get("attn_implementation", "sdpa")) != "sdpa":
        raise UserError(
            f"attn_implementation: {attention} cannot be cut over ranks, which strategy: cp needs: write sdpa."
        )


def padded_to(arguments: Any) -> int:
    """What the length of a batch is a multiple of: 8, and with context parallelism the parts that a row is cut into
    (two a rank, from both ends, so that each has as much to do under a causal mask).

    Args:
        arguments: the Trainer's.
    """
    _, context = degrees(arguments)
    return 8 if context == 1 else math.lcm(8, 2 * context)


def check_cut(model: Any) -> None:
    """Refuse, of a model that was cut over ranks while loading, what would fail or silently go wrong.

    PEFT 0.21 cuts LoRA's A matrix a second time where a matrix is cut along its input, and the first forward pass
    fails. transformers 5.24 unties embedding and head when both tensor parallelism and FSDP2 cut them: each is then
    updated by a part of their common gradient.

    Args:
        model: with its method; one that is not cut passes.

    Raises:
        UserError: LoRA is on such a matrix, or embedding and head are tied.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if (getattr(base, "_tp_size", None) or 1) == 1:
        return
    if (base._fsdp_size or 1) > 1 and base.config.get_text_config().tie_word_embeddings:
        raise UserError(
            "strategy: tp beside data-parallel ranks updates this model's tied embedding and head apart (transformers "
            f"5.24): give tensor_parallel_size all ranks, or {_WAY_OUT}."
        )
    names = getattr(getattr(model, "base_model", None), "targeted_module_names", ())
    plan = base.tp_plan or {}
    cut = {name.rsplit(".", 1)[-1] for name, style in plan.items() if not style.startswith("colwise")}
    if met := sorted(cut & {name.rsplit(".", 1)[-1] for name in names}):
        raise UserError(
            f"lora_target_modules: under strategy: tp PEFT cannot put LoRA on {' and '.join(met)}, cut along their "
            f"input: leave them out, or {_WAY_OUT}."
        )


def save_model_only(arguments: Any) -> None:
    """The Trainer refuses to save the optimizer of a model that was cut while loading; told."""
    if arguments.save_strategy == "no" or arguments.save_only_model:
        return
    arguments.save_only_model = True
    logger.warning(
        "strategy: tp: checkpoints hold the model alone, as the Trainer cannot save the optimizer of a model that is "
        "cut while loading: a run that is stopped cannot be resumed."
    )
