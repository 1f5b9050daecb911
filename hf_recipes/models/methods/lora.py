"""LoRA with its variants (rsLoRA, DoRA, ranks by pattern, other starts): the adapter put on a base model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.files import read_json
from hf_recipes.models.methods.lora_start import changes_base, start_adapter
from hf_recipes.models.methods.targets import ALL_LINEAR, check_modules_to_save, is_linear, resolve_targets
from hf_recipes.models.methods.values import names, positive_number, probability, truth, whole_number

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from torch import Tensor, nn
    from transformers import PreTrainedModel

DEFAULT_TARGETS = ("q_proj", "v_proj")
STARTS = ("default", "gaussian", "orthogonal", "pissa", "olora", "eva", "pissa_niter_N")
_PISSA_NITER = re.compile(r"pissa_niter_([1-9]\d?)")
MAX_RANK = 4096  # the width of a 7B model: more is a slip of the keyboard
MAX_PISSA_ITERATIONS = 64  # PEFT's examples take 16; a full decomposition (pissa) is quicker than hundreds


@dataclass(frozen=True)
class LoraSettings:
    """The knobs of a LoRA adapter; names and meaning as in `peft.LoraConfig`.

    `rank_pattern` and `alpha_pattern` give modules a rank or alpha of their own, by regular expressions for the end of
    their names; the first that fits counts. `init_lora_weights` is one of `STARTS`, see `lora_start`; PEFT's True is
    ``default``. A text in place of a list of names is one name.

    Raises:
        UserError: a value of the wrong kind or out of range, a start that does not exist or does not go with the rest,
            or a pattern that is none.
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
        checked = {
            "r": whole_number("lora_r", self.r, 1, MAX_RANK),
            "alpha": positive_number("lora_alpha", self.alpha),
            "dropout": probability("lora_dropout", self.dropout),
            "target_parameters": names("lora_target_parameters", self.target_parameters) or None,
            "modules_to_save": names("lora_modules_to_save", self.modules_to_save) or None,
            "use_rslora": truth("use_rslora", self.use_rslora),
            "use_dora": truth("use_dora", self.use_dora),
            "rank_pattern": _checked_ranks(self.rank_pattern),
            "alpha_pattern": _checked_alphas(self.alpha_pattern),
            "init_lora_weights": _checked_start(self.init_lora_weights),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        _check_targets_given(self)
        _check_start_fits(self)

    def to_peft(self, task_type: str) -> LoraConfig:
        """The `peft.LoraConfig` (bias stays frozen). Starts that PEFT would make, but less exactly, are left to
        `start_adapter`."""
        from peft import EvaConfig, LoraConfig

        targets = self.target_modules
        if not isinstance(targets, str) and targets is not None:
            targets = ALL_LINEAR if list(targets) == [ALL_LINEAR] else list(targets)
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


class _FoundByEva(LoraSettings):
    """Settings with the ranks that EVA chose, read back from a checkpoint."""


def _checked_ranks(patterns: Any) -> dict[str, int] | None:
    key = "lora_rank_pattern"
    _check_patterns(key, patterns)
    return patterns and {each: whole_number(f"{key}: '{each}'", patterns[each], 1, MAX_RANK) for each in patterns}


def _checked_alphas(patterns: Any) -> dict[str, float] | None:
    key = "lora_alpha_pattern"
    _check_patterns(key, patterns)
    return patterns and {each: positive_number(f"{key}: '{each}'", patterns[each]) for each in patterns}


def _check_patterns(key: str, patterns: Any) -> None:
    if patterns is not None and not isinstance(patterns, Mapping):
        raise UserError(f"{key} is {patterns!r}: give a mapping of module names to numbers, such as {{q_proj: 8}}.")
    for pattern in patterns or ():
        if not isinstance(pattern, str) or not pattern:
            raise UserError(f"{key}: {pattern!r} is no name of a module: give the end of one, such as q_proj.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{key}: '{pattern}' is no regular expression ({error}): correct it.") from None


def _checked_start(start: Any) -> str:
    if start is True:
        return "default"
    key = "init_lora_weights"
    if start is False:
        raise UserError(
            f"{key} is False: PEFT would start with both halves random, which changes the base's output before the "
            "first step; write default, or orthogonal for two halves that are not zero."
        )
    if isinstance(start, str) and start in STARTS[:-1]:
        return start
    usable = (*STARTS[:-1], "pissa_niter_16")
    lowered = str(start).lower()
    if lowered.startswith("pissa_niter"):
        found = _PISSA_NITER.fullmatch(str(start))
        if found and int(found[1]) <= MAX_PISSA_ITERATIONS:
            return str(start)
        raise UserError(
            f"{key}: '{start}' gives no number of iterations from 1 to {MAX_PISSA_ITERATIONS}: write it as in "
            "pissa_niter_16."
        )
    raise UserError(
        f"{key}: '{start}' is none of {', '.join(STARTS)}{nearest(lowered, usable)}; N is a number of iterations, such "
        "as pissa_niter_16."
    )


def _check_targets_given(settings: LoraSettings) -> None:
    targets = settings.target_modules
    if targets is not None and not names("lora_target_modules", targets) and not settings.target_parameters:
        raise UserError(f"lora_target_modules names no module: give names such as q_proj, or write {ALL_LINEAR}.")


def _check_start_fits(settings: LoraSettings) -> None:
    start = settings.init_lora_weights
    ranks = (settings.r, *(settings.rank_pattern or {}).values())
    if start == "orthogonal" and (odd := [rank for rank in ranks if rank % 2]):
        raise UserError(f"init_lora_weights: 'orthogonal' halves the rank, and {odd[0]} is odd: make it even.")
    if start == "eva" and settings.rank_pattern and not isinstance(settings, _FoundByEva):
        raise UserError(
            "init_lora_weights: 'eva' chooses each module's rank by the data and would override lora_rank_pattern: "
            "remove one of them."
        )
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

    settings = _fitted(model, settings)
    with warnings.catch_warnings():
        # A pattern that matches nothing is refused below, which says more.
        warnings.filterwarnings("ignore", message=r"The following (rank|alpha)_pattern keys did not match")
        adapted = get_peft_model(model, settings.to_peft(task_type), autocast_adapter_dtype=autocast_adapter_dtype)
    _check_patterns_match(adapted, settings)
    start = settings.init_lora_weights
    if start == "orthogonal" or changes_base(start):
        start_adapter(adapted, start, initial)
    return adapted


def _fitted(model: PreTrainedModel, settings: LoraSettings) -> LoraSettings:
    """The settings with their targets as PEFT takes them, once all names are known to be the model's."""
    key = "lora_target_modules"
    if settings.target_modules is None and not settings.target_parameters:
        _check_known_to_peft(model, key)
    check_modules_to_save(model, settings.modules_to_save or (), "lora_modules_to_save")
    if settings.target_modules is None or not list(settings.target_modules):
        return settings
    rule = "LoRA goes on linear, embedding and convolution layers only"
    targets = resolve_targets(model, settings.target_modules, key, accepts=_takes_lora, rule=rule)
    return type(settings)(**{**vars(settings), "target_modules": targets})


def _takes_lora(module: nn.Module) -> bool:
    from torch import nn

    kinds = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention)
    return isinstance(module, kinds) or is_linear(module)


def _check_known_to_peft(model: PreTrainedModel, key: str) -> None:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    kind = getattr(model.config, "model_type", None)
    if kind not in KNOWN:
        raise UserError(f"{key}: PEFT has no default for a model of type '{kind}': give names, or write {ALL_LINEAR}.")


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
    found = {name: saved[name] for name in ("target_modules", "rank_pattern", "alpha_pattern")}
    return _FoundByEva(**{**vars(settings), **found})
