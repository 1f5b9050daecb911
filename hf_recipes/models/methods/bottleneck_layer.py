"""The bottleneck adapter as a PEFT method. Importing this file is what makes PEFT know it.

PEFT 0.21.2 has no series adapter behind a module's output: PEANuT's nonlinear layers act on the weight, Lily and its
kin are linear in the input, Shadow runs a network beside the decoder and adaption_prompt is LLaMA-Adapter. Saving,
loading, switching, disabling and dtypes are all PEFT's own. Once PEFT brings a bottleneck adapter, use that and remove
this file.

A process that reads such an adapter through PEFT must have imported this file; without it PEFT stops with
``KeyError: 'HF_RECIPES_BOTTLENECK'``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peft import PeftConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from torch.nn import functional

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.models.methods.values import probability, whole_number

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}

# The projections that write to the residual stream, by the names (ends) transformers gives them. A bare `out_proj` or
# `dense` would also match Mamba's mixer, whose kernel passes the module by, and BERT's inner layers and heads.
ATTENTION_OUTPUTS = (
    "o_proj",
    "attn.out_proj",
    "self_attn.out_proj",
    "encoder_attn.out_proj",
    "attention.out_proj",
    "attn.c_proj",
    "attention.dense",
    "self_attention.dense",
    "self_attn.dense",
    "attention.output.dense",
    "SelfAttention.o",
    "EncDecAttention.o",
    "attn.Wo",
)
MLP_OUTPUTS = (
    "down_proj",
    "fc2",
    "fc_out",
    "mlp.c_proj",
    "dense_4h_to_h",
    "output.dense",
    "DenseReluDense.wo",
    "mlp.Wo",
    "feed_forward.w2",
)


class BottleneckType(enum.StrEnum):
    """Our `peft.PeftType`: equal to its text, as PEFT's mappings and adapter_config.json want it, and named so that
    PEFT's error in a process that lacks it says whose it is."""

    BOTTLENECK = "HF_RECIPES_BOTTLENECK"


@dataclass
class BottleneckConfig(PeftConfig):
    """What adapter_config.json holds of a bottleneck adapter.

    Args:
        adapter_size: Width of the bottleneck.
        adapter_activation: A key of `ACTIVATIONS`.
        adapter_dropout: Dropout on the adapter's output, before it is added.
        target_modules: Names or ends of the modules whose output it follows, or a regular expression; ``None`` finds
            the attention's and the MLP's output projections.
        modules_to_save: Modules trained in full and saved beside it.

    Raises:
        UserError: a setting is out of range.
    """

    adapter_size: int = 64
    adapter_activation: str = "relu"
    adapter_dropout: float = 0.0
    target_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = BottleneckType.BOTTLENECK
        self.adapter_size = whole_number("adapter_size", self.adapter_size, 1)
        if str(self.adapter_activation) not in ACTIVATIONS:
            raise UserError(
                f"adapter_activation '{self.adapter_activation}' is not known"
                f"{nearest(str(self.adapter_activation).lower(), ACTIVATIONS)}: choose from {', '.join(ACTIVATIONS)}."
            )
        self.adapter_dropout = probability("adapter_dropout", self.adapter_dropout)


class BottleneckLayer(nn.Module, BaseTunerLayer):
    """A frozen module and what follows it: ``y + dropout(up(activation(down(y))))`` with ``y`` the module's output.

    Several active adapters follow one another. They compute in their weights' dtype (fp32 over a 16-bit base) and
    return the base's.
    """

    adapter_layer_names = ("bottleneck_down", "bottleneck_up")
    other_param_names = ("bottleneck_dropout", "bottleneck_activation")
    # Brought by PEFT's mixin; mypy takes a module's unknown names for tensors.
    active_adapters: list[str]
    set_adapter: Callable[..., None]
    _cast_input_dtype: Callable[..., Tensor]
    _move_adapter_to_device_of_base_layer: Callable[[str], None]

    def __init__(self, base_layer: nn.Module, out_features: int, adapter_name: str, config: BottleneckConfig) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.out_features = out_features
        self.bottleneck_down = nn.ModuleDict()
        self.bottleneck_up = nn.ModuleDict()
        self.bottleneck_dropout = nn.ModuleDict()
        self.bottleneck_activation: dict[str, Callable[[Tensor], Tensor]] = {}
        self._active_adapter = adapter_name
        self.update_layer(adapter_name, config)

    def update_layer(self, adapter_name: str, config: BottleneckConfig) -> None:
        """Add an adapter; ``up`` starts at zero, so nothing changes until it is trained."""
        down = nn.Linear(self.out_features, config.adapter_size)
        up = nn.Linear(config.adapter_size, self.out_features)
        for start in (down.bias, up.weight, up.bias):
            nn.init.zeros_(start)
        self.bottleneck_down[adapter_name] = down
        self.bottleneck_up[adapter_name] = up
        self.bottleneck_dropout[adapter_name] = (
            nn.Dropout(config.adapter_dropout) if config.adapter_dropout else nn.Identity()
        )
        self.bottleneck_activation[adapter_name] = ACTIVATIONS[config.adapter_activation]
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output, adapted; shape and dtype are the module's."""
        result = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return result
        for name in self.active_adapters:
            if name not in self.bottleneck_down:
                continue
            down = self.bottleneck_down[name]
            inner = self.bottleneck_activation[name](down(self._cast_input_dtype(result, down.weight.dtype)))
            added = self.bottleneck_dropout[name](self.bottleneck_up[name](inner))
            result = (result + added).to(result.dtype)
        return result


class BottleneckModel(BaseTuner):
    """A base model with bottleneck adapters behind its target modules."""

    prefix = "bottleneck_"
    tuner_layer_cls = BottleneckLayer

    def _prepare_adapter_config(self, peft_config: BottleneckConfig, model_config: dict[str, Any]) -> BottleneckConfig:
        if peft_config.target_modules is None:
            peft_config.target_modules = find_output_projections(self.model)
        return peft_config

    def _create_and_replace(
        self,
        peft_config: BottleneckConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        if isinstance(target, BottleneckLayer):
            target.update_layer(adapter_name, peft_config)
            return
        width = output_width(target)
        if width is None:
            raise UserError(
                f"adapter_target_modules: '{current_key}' is a {type(target).__name__}, and a bottleneck adapter "
                "follows linear layers only: name the projections inside it."
            )
        layer = BottleneckLayer(target, width, adapter_name, peft_config)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)

    def _check_merge_allowed(self) -> None:
        raise UserError(
            "A bottleneck adapter cannot be merged, because it is not linear and no weight of the base could stand for "
            "it: keep it beside its base and load both through PEFT."
        )


def output_width(module: nn.Module) -> int | None:
    """Features that a linear layer (quantised, GPT-2's ``Conv1D`` or adapted ones included) puts out; else ``None``."""
    return getattr(module, "out_features", None) or getattr(module, "nf", None)


def find_output_projections(model: nn.Module) -> list[str]:
    """Ends of the names of the attention's and the MLP's output projections in `model`.

    Raises:
        UserError: there are none of either, with the names of the linear layers there are.
    """
    names = [name for name, module in model.named_modules() if output_width(module) is not None]
    found = {
        place: [end for end in ends if any(name.endswith(f".{end}") for name in names)]
        for place, ends in (("attention", ATTENTION_OUTPUTS), ("MLP", MLP_OUTPUTS))
    }
    if not any(found.values()):
        leaves = sorted({name.rsplit(".", 1)[-1] for name in names})
        raise UserError(
            f"No output projection of attention or MLP is known in {type(model).__name__}: give "
            f"adapter_target_modules, out of {', '.join(leaves)}."
        )
    for place, ends in found.items():
        if not ends:
            logger.warning(
                "No output projection of the %s was found in %s (fused experts have none): no adapter follows it.",
                place,
                type(model).__name__,
            )
    return found["attention"] + found["MLP"]


# `peft.utils.register_peft_method` would refuse a method that is no member of its PeftType; these are the entries it
# makes. Assigning them again changes nothing.
PEFT_TYPE_TO_CONFIG_MAPPING[BottleneckType.BOTTLENECK] = BottleneckConfig
PEFT_TYPE_TO_TUNER_MAPPING[BottleneckType.BOTTLENECK] = BottleneckModel
PEFT_TYPE_TO_PREFIX_MAPPING[BottleneckType.BOTTLENECK] = BottleneckModel.prefix
