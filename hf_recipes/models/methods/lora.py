"""LoRA with its variants (rsLoRA, DoRA, ranks by pattern, other starts): the adapter put on a base model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.models.methods.lora_start import changes_base, start_adapter
from hf_recipes.models.methods.targets import check_targets

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

DEFAULT_TARGETS = ("q_proj", "v_proj")
STARTS = ("default", "gaussian", "orthogonal", "pissa", "olora", "eva", "pissa_niter_N")
_PISSA_NITER = re.compile(r"pissa_niter_[1-9]\d*")


@dataclass(frozen=True)
class LoraSettings:
    """The knobs of a LoRA adapter; names and meaning as in `peft.LoraConfig`.

    `rank_pattern` and `alpha_pattern` give modules a rank or alpha of their own, by regular expressions for the end of
    their names; the first that fits counts. `init_lora_weights` is one of `STARTS`, see `lora_start`.

    Raises:
        UserError: a start that does not exist or does not go with the rest, or a pattern that is none.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.05
    target_modules: str | Sequence[str] | None = DEFAULT_TARGETS
    target_parameters: Sequence[str] | None = None
    modules_to_save: Sequence[str] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, float] | None = None
    init_lora_weights: str = "default"

    def __post_init__(self) -> None:
        _check_pattern("lora_rank_pattern", self.rank_pattern, int)
        _check_pattern("lora_alpha_pattern", self.alpha_pattern, (int, float))
        _check_start(self)

    def to_peft(self, task_type: str) -> LoraConfig:
        """The `peft.LoraConfig` (bias stays frozen). Starts that PEFT would make, but less exactly, are left to
        `start_adapter`."""
        from peft import EvaConfig, LoraConfig

        targets = self.target_modules
        if not isinstance(targets, str) and targets is not None:
            targets = "all-linear" if list(targets) == ["all-linear"] else list(targets)
        eva = self.init_lora_weights == "eva"
        start: Any = self.init_lora_weights if eva or self.init_lora_weights == "gaussian" else True
        return LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets,
            target_parameters=self.target_parameters and list(self.target_parameters),
            modules_to_save=self.modules_to_save and list(self.modules_to_save),
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            rank_pattern=dict(self.rank_pattern or {}),
            alpha_pattern=dict(self.alpha_pattern or {}),
            init_lora_weights=start,
            # A module of another rank keeps its scale: alpha follows the rank. rsLoRA has a law of its own for that.
            eva_config=EvaConfig(adjust_scaling_factors=not self.use_rslora) if eva else None,
            bias="none",
            task_type=task_type,
        )


def _check_pattern(key: str, patterns: Mapping[str, Any] | None, kinds: Any) -> None:
    for pattern, value in (patterns or {}).items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{key}: '{pattern}' is no regular expression ({error}): correct it.") from None
        if not isinstance(value, kinds) or isinstance(value, bool) or value <= 0:
            number = "a whole number" if kinds is int else "a number"
            raise UserError(f"{key}: '{pattern}' is given {value!r}: give {number} above 0.")


def _check_start(settings: LoraSettings) -> None:
    start = settings.init_lora_weights
    if start not in STARTS[:-1] and not _PISSA_NITER.fullmatch(str(start)):
        raise UserError(
            f"init_lora_weights: '{start}' is none of {', '.join(STARTS)}{nearest(str(start), STARTS)}; N is a number "
            "of iterations, such as pissa_niter_16."
        )
    ranks = (settings.r, *(settings.rank_pattern or {}).values())
    if start == "orthogonal" and (odd := [rank for rank in ranks if rank % 2]):
        raise UserError(f"init_lora_weights: 'orthogonal' halves the rank, and {odd[0]} is odd: make it even.")
    if settings.target_parameters and start not in ("default", "gaussian"):
        raise UserError(f"init_lora_weights: '{start}' does not reach lora_target_parameters: use default or gaussian.")


def attach_lora(
    model: PreTrainedModel,
    settings: LoraSettings,
    *,
    task_type: str = "CAUSAL_LM",
    autocast_adapter_dtype: bool = True,
    initial: Mapping[str, Tensor] | None = None,
) -> PeftModel:
    """Put a LoRA adapter on `model`; its other weights are frozen.

    After ``pissa`` and ``olora`` keep `lora_start.initial_adapter(model)`: the result needs it. After ``eva`` call
    `lora_start.start_from_data`; until then it is a LoRA of default start.

    Args:
        model: The base model. ``pissa`` and ``olora`` change its targeted weights.
        settings: Rank, scale, targets, start.
        task_type: PEFT's task type (``CAUSAL_LM``, ``SEQ_CLS``).
        autocast_adapter_dtype: Keep the adapter in fp32 over a 16-bit base, so that small updates are not rounded away.
        initial: On resume of ``pissa`` and ``olora``, what was kept: the base becomes the same to the bit.

    Raises:
        UserError: a target or a pattern matches no module, with the names there are; or the base cannot give the start.
    """
    from peft import get_peft_model

    check_targets(model, settings.target_modules, "lora_target_modules")
    adapted = get_peft_model(model, settings.to_peft(task_type), autocast_adapter_dtype=autocast_adapter_dtype)
    _check_patterns_match(adapted, settings)
    start = settings.init_lora_weights
    if changes_base(start) and settings.dropout:
        logger.warning(
            "init_lora_weights: '%s' moves a part of the base into the adapter, of which lora_dropout %g then drops "
            "some: set lora_dropout to 0.",
            start,
            settings.dropout,
        )
    if start == "orthogonal" or changes_base(start):
        start_adapter(adapted, start, initial)
    return adapted


def _check_patterns_match(model: PeftModel, settings: LoraSettings) -> None:
    """PEFT merely warns of a pattern that matches no module, and says nothing of one whose modules are taken."""
    from peft.tuners.lora import LoraLayer

    modules = [
        name.removeprefix("base_model.model.") for name, each in model.named_modules() if isinstance(each, LoraLayer)
    ]
    for key, patterns in (
        ("lora_rank_pattern", settings.rank_pattern or {}),
        ("lora_alpha_pattern", settings.alpha_pattern or {}),
    ):
        free = set(modules)
        for pattern in patterns:
            matched = _matched(pattern, modules)
            if not matched:
                leaves = sorted({name.rpartition(".")[2] for name in modules})
                raise UserError(
                    f"{key}: '{pattern}' matches the end of no module with an adapter{nearest(pattern, leaves)}: they "
                    f"are {', '.join(leaves)}, in full such as '{modules[0]}'."
                )
            if not matched & free:
                raise UserError(
                    f"{key}: '{pattern}' has no effect, earlier patterns take all it matches: reorder them."
                )
            free -= matched


def _matched(pattern: str, modules: Iterable[str]) -> set[str]:
    """As `peft.utils.other.get_pattern_key` matches."""
    return {name for name in modules if re.match(rf"(.*\.)?({pattern})$", name)}


def resumed_settings(settings: LoraSettings, checkpoint: Path) -> LoraSettings:
    """The settings that build the model a checkpoint was trained with.

    They differ from the recipe's after ``eva`` alone, which chose ranks and targets by the data: they are read from
    the checkpoint's ``adapter_config.json``, and `start_from_data` is not called again.
    """
    if settings.init_lora_weights != "eva":
        return settings
    saved = read_json(checkpoint / "adapter_config.json")
    return replace(
        settings,
        target_modules=saved["target_modules"],
        rank_pattern=saved["rank_pattern"],
        alpha_pattern=saved["alpha_pattern"],
    )
