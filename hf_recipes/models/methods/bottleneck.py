"""Bottleneck adapter (Houlsby et al. 2019): two small layers with a nonlinearity behind frozen projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hf_recipes.models.methods.targets import check_modules_to_save, is_linear, resolve_targets
from hf_recipes.models.methods.values import names

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from hf_recipes.models.methods.bottleneck_layer import BottleneckConfig


@dataclass(frozen=True)
class BottleneckSettings:
    """The knobs of a bottleneck adapter.

    Args:
        size: Width of the bottleneck.
        activation: ``relu``, ``gelu`` or ``silu``.
        dropout: Dropout on the adapter's output, before it is added.
        target_modules: Modules whose output it follows; ``None`` finds the attention's and the MLP's output projection
            (Houlsby et al. 2019). The MLP's alone, ``["down_proj"]`` in a Llama, is the variant of Pfeiffer et al.
            2020, with half the parameters. A plain text is a name if there is one, else a regular expression;
            ``all-linear`` is every linear layer but the head.
        modules_to_save: Modules trained in full beside it.
    """

    size: int = 64
    activation: str = "relu"
    dropout: float = 0.0
    target_modules: str | Sequence[str] | None = None
    modules_to_save: Sequence[str] | None = None

    def to_peft(self, task_type: str) -> BottleneckConfig:
        """The PEFT config."""
        from hf_recipes.models.methods.bottleneck_layer import BottleneckConfig

        targets = self.target_modules
        return BottleneckConfig(
            adapter_size=self.size,
            adapter_activation=self.activation,
            adapter_dropout=self.dropout,
            target_modules=targets if targets is None or isinstance(targets, str) else list(targets),
            modules_to_save=list(names("modules_to_save", self.modules_to_save)) or None,
            task_type=task_type,
        )


def attach_bottleneck(
    model: PreTrainedModel,
    settings: BottleneckSettings,
    *,
    task_type: str = "CAUSAL_LM",
    autocast_adapter_dtype: bool = True,
) -> PeftModel:
    """Put a bottleneck adapter on `model`; its other weights are frozen, and its output is unchanged at the start.

    Args:
        model: The base model.
        settings: Width, activation, dropout, targets.
        task_type: PEFT's task type (``CAUSAL_LM``, ``SEQ_CLS``).
        autocast_adapter_dtype: Keep the adapter in fp32 over a 16-bit base, so that small updates are not rounded away.

    Raises:
        UserError: a setting is out of range, a target matches no module (with the names there are), or no target was
            given and none is found.
    """
    from peft import get_peft_model

    targets = resolve_targets(
        model,
        settings.target_modules,
        "adapter_target_modules",
        accepts=is_linear,
        rule="a bottleneck adapter follows linear layers only",
    )
    config = replace(settings, target_modules=targets).to_peft(task_type)
    check_modules_to_save(model, config.modules_to_save or (), "modules_to_save")
    return get_peft_model(model, config, autocast_adapter_dtype=autocast_adapter_dtype)
