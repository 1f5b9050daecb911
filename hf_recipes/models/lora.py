"""LoRA and DoRA: the adapter put on a base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError, nearest

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

DEFAULT_TARGETS = ("q_proj", "v_proj")


@dataclass(frozen=True)
class LoraSettings:
    """The knobs of a LoRA adapter; names and meaning as in `peft.LoraConfig`."""

    r: int = 16
    alpha: float = 32
    dropout: float = 0.05
    target_modules: str | Sequence[str] | None = DEFAULT_TARGETS
    target_parameters: Sequence[str] | None = None
    modules_to_save: Sequence[str] | None = None
    use_rslora: bool = False
    use_dora: bool = False

    def to_peft(self, task_type: str) -> LoraConfig:
        """The `peft.LoraConfig` (bias stays frozen)."""
        from peft import LoraConfig

        targets = self.target_modules
        if not isinstance(targets, str) and targets is not None:
            targets = "all-linear" if list(targets) == ["all-linear"] else list(targets)
        return LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets,
            target_parameters=self.target_parameters and list(self.target_parameters),
            modules_to_save=self.modules_to_save and list(self.modules_to_save),
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            bias="none",
            task_type=task_type,
        )


def attach_lora(
    model: PreTrainedModel, settings: LoraSettings, *, task_type: str = "CAUSAL_LM", autocast_adapter_dtype: bool = True
) -> PeftModel:
    """Put a LoRA adapter on `model`; its other weights are frozen.

    Args:
        model: The base model.
        settings: Rank, scale, targets.
        task_type: PEFT's task type (``CAUSAL_LM``, ``SEQ_CLS``).
        autocast_adapter_dtype: Keep the adapter in fp32 over a 16-bit base, so that small updates are not rounded away.

    Raises:
        UserError: a target matches no module, with the names there are.
    """
    from peft import get_peft_model

    _check_targets(model, settings)
    return get_peft_model(model, settings.to_peft(task_type), autocast_adapter_dtype=autocast_adapter_dtype)


def _check_targets(model: PreTrainedModel, settings: LoraSettings) -> None:
    """PEFT refuses only when *no* target matches; a misspelt one among several would be left out in silence."""
    targets = settings.target_modules
    if targets is None or isinstance(targets, str) or list(targets) == ["all-linear"]:
        return
    names = {name for name, _ in model.named_modules()}
    leaves = sorted({name.rsplit(".", 1)[-1] for name, module in model.named_modules() if hasattr(module, "weight")})
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise UserError(
                f"lora_target_modules: '{target}' is no module of {type(model).__name__}{nearest(target, leaves)}: "
                f"choose from {', '.join(leaves)}, or write all-linear."
            )


def count_parameters(model: PreTrainedModel | PeftModel) -> tuple[int, int]:
    """(trainable, all) parameters by real shapes; 4-bit weights count as what they stand for, tied ones once."""
    trainable = total = 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        count = state.shape.numel() if state is not None else parameter.numel()
        total += count
        trainable += count if parameter.requires_grad else 0
    return trainable, total
