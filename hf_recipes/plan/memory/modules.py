"""The modules of one decoder layer, put together from a geometry's tensors, adapters beside what they adapt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from hf_recipes.plan.geometry import TensorShape
from hf_recipes.plan.memory.tape import Value
from hf_recipes.plan.memory.weights import width_of
from hf_recipes.plan.settings import TrainingSettings

_IN_LAYER = re.compile(r"\.(?:layers|h|blocks|block)\.\d+\.")
_ADAPTER_LEAF = re.compile(
    r"\.(lora_A|lora_B|lora_magnitude_vector|ia3_l|bottleneck_down|bottleneck_up)\.\w+(?:\.(weight|bias))?$"
)
_WRAPPED = re.compile(r"\.(?:base_layer|original_module|modules_to_save\.\w+)(?=\.)")


@dataclass
class Module:
    """One module with parameters: its own by leaf name, and those of the adapter around it.

    `quantized` says how bitsandbytes holds the weight (``nf4``, ``int8``), None where it does not.
    """

    own: dict[str, Value] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    adapter: dict[str, Value] = field(default_factory=dict)
    adapter_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    quantized: str | None = None

    @property
    def weight(self) -> Value:
        """Its main parameter."""
        return self.own["weight"] if "weight" in self.own else next(iter(self.own.values()))

    @property
    def bias(self) -> Value | None:
        """Of a linear layer."""
        return self.own.get("bias")


def modules_of(tensors: Iterable[TensorShape], settings: TrainingSettings) -> Mapping[str, Module]:
    """Modules by the name they have within their layer (``self_attn.q_proj``), or outside of any layer by their own."""
    found: dict[str, Module] = {}
    for tensor in tensors:
        name = _IN_LAYER.split("." + tensor.name)[-1]
        value = Value(float(tensor.count), width_of(tensor, settings), tensor.trained, parameter=True)
        adapter = _ADAPTER_LEAF.search("." + name)
        if adapter:
            owner = _WRAPPED.sub("", ("." + name)[: adapter.start()] + ".").strip(".")
            key = adapter[1] + (".bias" if adapter[2] == "bias" else "")
            module = found.setdefault(owner, Module())
            module.adapter[key], module.adapter_shapes[key] = value, tensor.shape
            continue
        owner, _, leaf = _WRAPPED.sub("", "." + name).strip(".").rpartition(".")
        module = found.setdefault(owner, Module())
        if leaf in module.own and not tensor.trained:
            continue  # the frozen original beside a copy that is trained
        module.own[leaf], module.shapes[leaf] = value, tensor.shape
        if tensor.linear and settings.quantization:
            module.quantized = settings.quantization
    return found


def out_features(module: Module) -> float:
    """Of a linear layer; `torch` keeps weights as (out, in), GPT-2's ``Conv1D`` as (in, out) with a bias of `out`."""
    shape, bias = module.shapes["weight"], module.shapes.get("bias")
    if bias is not None and prod(bias) != shape[0]:
        return float(shape[1])
    return float(shape[0])
