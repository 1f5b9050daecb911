"""Read a model's geometry from its class on the meta device: exact shapes of any architecture, no weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.core.files import read_json
from hf_recipes.core.meta_model import model_on_meta
from hf_recipes.plan.geometry import Geometry, TensorShape

_LAYER = re.compile(r"\.(?:layers|h|blocks|block)\.(\d+)\.")
# What PEFT calls the parameters it adds; `prompt_encoder` holds prefixes.
_ADAPTER = re.compile(r"(^|\.)(lora_|ia3_|bottleneck_|vera_|hada_|lokr_|oft_|boft_|prompt_encoder|trainable_tokens)")
_WRAPPING = re.compile(r"(\.base_layer(?=\.))|(\.original_module(?=\.))|(\.modules_to_save\.\w+)")


def read_geometry(config: Any, attach: Callable[[Any], Any] | None = None) -> Geometry:
    """The geometry of a model.

    Args:
        config: a transformers config, the dictionary of a config.json, or the file or directory that has it.
        attach: puts the training method on the model and returns it (``get_peft_model`` and the like); what is trained
            and the adapters' shapes are read from it. Without it everything is trained.

    Raises:
        UserError: the config cannot be read, or transformers has no class for it.
    """
    loaded, class_name = _load(config)
    try:
        model = model_on_meta(loaded, class_name)
    except (ValueError, KeyError, OSError, TypeError, ZeroDivisionError, RuntimeError) as error:
        raise UserError(
            f"No model of transformers can be built from this config ({first_line(error)}): give one that has a "
            "model_type this version knows."
        ) from None
    from hf_recipes.core.plain_head import has_plain_head

    quantisable = quantisable_linears(model)
    plain = has_plain_head(model)
    model = model if attach is None else _attached(model, attach)
    text = loaded.get_text_config()
    tensors = tuple(_tensors(model, quantisable))
    return Geometry(tensors=tensors, plain_head=plain, **_numbers(loaded, text, tensors))


def _attached(model: Any, attach: Callable[[Any], Any]) -> Any:
    """With the method on it, on the meta device too: adapters of large models are large."""
    import torch

    try:
        with torch.device("meta"):
            return attach(model)
    except UserError:
        raise
    except Exception as error:  # PEFT's, of whatever kind, about models that it was not made for
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"The method cannot be put on a {type(model).__name__} ({type(error).__name__}: {said}): choose another "
            "method or model."
        ) from None


def _load(config: Any) -> tuple[Any, str | None]:
    if isinstance(config, str | Path):
        config = _read_json(Path(config))
    if isinstance(config, Mapping):
        from transformers import AutoConfig

        values = dict(config)
        values.pop("quantization_config", None)
        kind = values.pop("model_type", None)
        if kind is None:
            raise UserError("The config names no model_type: give the config.json of a transformers model.")
        try:
            config = AutoConfig.for_model(kind, **values)
        except ValueError:
            raise UserError(f"model_type '{kind}' is unknown to this version of transformers: update it.") from None
    architectures = getattr(config, "architectures", None) or [None]
    return config, architectures[0]


def _read_json(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        found = read_json(path)
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be read ({error.strerror}): give a model's directory or config.json."
        ) from None
    except ValueError:
        raise UserError(f"'{path}' is not JSON: give a model's directory or its config.json.") from None
    if not isinstance(found, dict):
        raise UserError(f"'{path}' is no config: give a model's directory or its config.json.")
    return found


def quantisable_linears(model: Any) -> frozenset[str]:
    """Names of the modules that transformers' bitsandbytes quantizers replace (`replace_with_bnb_linear`): plain linear
    layers but head and whatever is tied; experts fused into one parameter are no linear layers and stay as they are."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = get_keys_to_not_convert(model) + list(model._keep_in_fp32_modules or [])
    return frozenset(
        name
        for name, module in model.named_modules()
        if (type(module) is nn.Linear or isinstance(module, Conv1D)) and should_convert_module(name, kept)
    )


def _tensors(model: Any, quantisable: frozenset[str]) -> Iterator[TensorShape]:
    from torch import nn

    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    for name, parameter in model.named_parameters():  # each tied parameter once
        owner_name, _, leaf = name.rpartition(".")
        owner = modules[owner_name]
        layer = _LAYER.search("." + name)
        yield TensorShape(
            name=name,
            shape=tuple(parameter.shape),
            part=_part(name, owner, is_head=owner is head, embedding=isinstance(owner, nn.Embedding)),
            layer=int(layer[1]) if layer else None,
            trained=parameter.requires_grad,
            linear=leaf == "weight" and not _is_adapter(name) and not quantisable.isdisjoint(_base_names(owner_name)),
        )


def _base_names(module: str) -> set[str]:
    """What the base may call a module: PEFT puts ``base_model.model.`` before it, for prefixes ``base_model.``."""
    inner = _WRAPPING.sub("", module + ".").rstrip(".")
    return {inner, inner.removeprefix("base_model."), inner.removeprefix("base_model.model.")}


def _is_adapter(name: str) -> bool:
    return _ADAPTER.search(name) is not None


def _part(name: str, owner: Any, *, is_head: bool, embedding: bool) -> str:
    kind = type(owner).__name__
    path = _WRAPPING.sub("", name).split(".")
    if _is_adapter(name):
        return "adapter"
    if embedding:
        return "embeddings"
    if is_head or path[-2:-1] == ["lm_head"]:
        return "head"
    if "norm" in kind.lower() or "layernorm" in path[-2:-1]:
        return "norms"
    if "experts" in path:
        return "experts"
    if "Router" in kind or path[-2:-1] in (["router"], ["gate"]):
        return "router"
    if any("attn" in each or "attention" in each for each in path):
        return "attention"
    if any(each in ("mlp", "feed_forward", "ffn", "fc1", "fc2", "block_sparse_moe") for each in path):
        return "mlp"
    return "other"


def _numbers(config: Any, text: Any, tensors: tuple[TensorShape, ...]) -> dict[str, Any]:
    def first(*names: str, default: int = 0) -> int:
        return next((int(getattr(text, each)) for each in names if getattr(text, each, None)), default)

    hidden, heads = first("hidden_size", "n_embd"), first("num_attention_heads", "n_head", default=1)
    experts = first("num_local_experts", "num_experts", "n_routed_experts")
    intermediate = first("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
    expert_size = first("moe_intermediate_size", default=intermediate) if experts else 0
    shared = first("shared_expert_intermediate_size", default=first("n_shared_experts") * expert_size) if experts else 0
    names = {_WRAPPING.sub("", tensor.name).rsplit(".", 2)[-2] for tensor in tensors if "." in tensor.name}
    return {
        "model_type": config.model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "layers": first("num_hidden_layers", "n_layer"),
        "heads": heads,
        "kv_heads": first("num_key_value_heads", default=heads),
        "head_dim": first("head_dim", default=hidden // heads),
        "vocab_size": first("vocab_size"),
        "gated_mlp": bool(names & {"gate_proj", "gate_up_proj", "w3"}) or experts > 0,
        "tied": not any(tensor.part == "head" for tensor in tensors),
        "experts": experts,
        "experts_per_token": first("num_experts_per_tok", "moe_topk", "top_k") if experts else 0,
        "expert_size": expert_size,
        "shared_expert_size": shared,
        "max_positions": first("max_position_embeddings", "n_positions"),
    }
