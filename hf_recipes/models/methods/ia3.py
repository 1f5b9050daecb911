"""(IA)³ (Liu et al. 2022, arXiv:2205.05638): trained vectors that scale keys, values and the MLP's hidden units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.models.methods.targets import ALL_LINEAR, is_linear, resolve_targets

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from transformers import PreTrainedModel

# For architectures that PEFT's table does not know; the names most decoders share.
DEFAULT_TARGETS = ("k_proj", "v_proj", "down_proj")
DEFAULT_FEEDFORWARD = ("down_proj",)
_TARGETS_KEY, _FEEDFORWARD_KEY = "ia3_target_modules", "ia3_feedforward_modules"

Names = str | Sequence[str]


@dataclass(frozen=True)
class IA3Settings:
    """Where the vectors act; names and meaning as in `peft.IA3Config`.

    Args:
        target_modules: Linear layers that are scaled, by name, or by a regular expression as plain text that is no
            name; ``None`` takes those that PEFT's table has for the architecture, else `DEFAULT_TARGETS`.
        feedforward_modules: Those among them whose inputs are scaled in place of their outputs; ``None`` as above, an
            empty list for none.
    """

    target_modules: Names | None = None
    feedforward_modules: Names | None = None


def resolve(settings: IA3Settings, model_type: str) -> tuple[str | list[str], str | list[str]]:
    """Target and feed-forward names, as a list or as a regular expression.

    Those not given are the defaults for `model_type`, the feed-forward ones as far as they are among the targets.
    """
    from peft.utils import constants

    known = constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
    known_feedforward = constants.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING
    targets = _plain(settings.target_modules)
    if targets is None:
        targets = list(known.get(model_type, DEFAULT_TARGETS))
    feedforward = _plain(settings.feedforward_modules)
    if feedforward is None:
        feedforward = list(known_feedforward.get(model_type, DEFAULT_FEEDFORWARD))
        if not isinstance(targets, str):
            feedforward = [name for name in feedforward if name in targets]
    return targets, feedforward


def _plain(names: Names | None) -> str | list[str] | None:
    if names is None or isinstance(names, str):
        return names
    return ALL_LINEAR if list(names) == [ALL_LINEAR] else list(names)


def attach_ia3(
    model: PreTrainedModel, settings: IA3Settings, *, task_type: str = "CAUSAL_LM", autocast_adapter_dtype: bool = True
) -> PeftModel:
    """Put (IA)³ vectors, all ones at the start, on `model`; its other weights are frozen.

    Args:
        model: The base model.
        settings: Targets.
        task_type: PEFT's task type (``CAUSAL_LM``, ``SEQ_CLS``).
        autocast_adapter_dtype: Keep the vectors in fp32 over a 16-bit base, whose own steps around one are 1/128.

    Raises:
        UserError: a name matches no module, or no target (for feed-forward names); with the names there are.
    """
    from peft import IA3Config, get_peft_model

    given = IA3Settings(
        _resolved(model, settings.target_modules, _TARGETS_KEY),
        settings.feedforward_modules and _resolved(model, settings.feedforward_modules, _FEEDFORWARD_KEY),
    )
    targets, feedforward = resolve(given, model.config.get_text_config().model_type)
    if given.target_modules is None:
        _resolved(model, targets, _TARGETS_KEY)
    if not isinstance(feedforward, str) and not isinstance(targets, str):
        _check_among_targets(feedforward, targets)
    config = IA3Config(target_modules=targets, feedforward_modules=feedforward, task_type=task_type)
    attached = get_peft_model(model, config, autocast_adapter_dtype=autocast_adapter_dtype)
    if given.feedforward_modules and not any(getattr(module, "is_feedforward", False) for module in attached.modules()):
        raise UserError(f"{_FEEDFORWARD_KEY}: {feedforward} names none of the layers of {_TARGETS_KEY}, {targets}.")
    return attached


def _resolved(model: nn.Module, names: Names | None, key: str) -> Names | None:
    return resolve_targets(model, names, key, accepts=is_linear, rule="IA3 scales linear layers only")


def _check_among_targets(feedforward: list[str], targets: list[str]) -> None:
    for name in feedforward:
        if name not in targets:
            raise UserError(
                f"{_FEEDFORWARD_KEY}: '{name}' is not among {_TARGETS_KEY}{nearest(name, targets)}: choose from "
                f"{', '.join(targets)}, or name it there too."
            )
