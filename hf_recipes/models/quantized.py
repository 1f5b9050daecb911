"""QLoRA (Dettmers et al. 2023): a frozen base in four bits with double quantisation, or in eight, LoRA on top."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.four_bits import told_misread
from hf_recipes.core.log import logger
from hf_recipes.models.methods.values import truth
from hf_recipes.models.placement import sharded_by
from hf_recipes.models.source import ModelSource
from hf_recipes.models.stored import check_stored, describe_stored, stored_quantization

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel

QUANT_TYPES = ("nf4", "fp4")
# What has no meaning in eight bits: recipe keys, and the fields of `QuantizationSettings` they become.
FOUR_BIT_KEYS = {
    "bnb_4bit_quant_type": "quant_type",
    "use_bnb_nested_quant": "double_quant",
    "bnb_4bit_quant_storage": "quant_storage",
}
STORED_BYTES = "uint8"  # what bitsandbytes packs two weights into, unless another dtype is asked for


@dataclass(frozen=True)
class QuantizationSettings:
    """How QLoRA quantises a 16-bit base while loading it.

    `quant_type` is ``nf4`` or ``fp4``; `double_quant` quantises the scales too (4.125 bits a weight instead of 4.5);
    `load_in_8bit` takes LLM.int8() in place of four bits; `quant_storage` is the dtype the packed bytes are kept as,
    None for bytes, or for the compute dtype where the weights are sharded.
    """

    quant_type: str = "nf4"
    double_quant: bool = True
    quant_storage: str | None = None
    load_in_8bit: bool = False

    def __post_init__(self) -> None:
        truth("use_bnb_nested_quant", self.double_quant)
        truth("load_in_8bit", self.load_in_8bit)


def check_eight_bit(given: Collection[str]) -> None:
    """Refuse, beside ``load_in_8bit: true``, what acts on four bits only.

    Args:
        given: Names of what the user gave (not of defaults): recipe keys or fields of `QuantizationSettings`.

    Raises:
        UserError: the type, storage or double quantisation of four bits is among them.
    """
    four_bit = [name for name in (*FOUR_BIT_KEYS, *FOUR_BIT_KEYS.values()) if name in given]
    if four_bit:
        raise UserError(
            f"{', '.join(four_bit)}: acts on a base in four bits only, not with load_in_8bit: remove one of them."
        )


def choose_quantization(
    source: ModelSource,
    method: str,
    compute_dtype: str,
    settings: QuantizationSettings | None = None,
    *,
    sharding: str | None = None,
) -> Any:
    """What `load_base` gives ``from_pretrained`` as quantisation, by the method and by how the base is stored.

    Args:
        source: From `find_model`.
        method: The recipe's method; only ``qlora`` quantises a base, the others may meet one that is quantised.
        compute_dtype: What weights are dequantised to for each product.
        settings: How ``qlora`` quantises; default `QuantizationSettings()`.
        sharding: `placement.FSDP` or `placement.ZERO3`; by default what the launcher's environment says.

    Returns:
        A quantisation config, or None for the base as it is stored.

    Raises:
        UserError: the method cannot train this base, or the weights cannot be sharded as they are (to be) stored.
    """
    settings = settings or QuantizationSettings()
    compute = canonical_dtype_name(compute_dtype, "compute_dtype")
    sharding = sharding or sharded_by()
    stored = stored_quantization(source)
    if stored is not None:
        config = check_stored(stored, method)
        if config is None:
            _check_stored_sharding(stored, compute, sharding)
        return config
    if method != "qlora":
        return None
    if source.gguf_file:
        raise UserError(
            f"'{source.gguf_file}' is dequantised while loading and cannot be quantised anew in the same go: "
            "use method: lora, or save it as safetensors first."
        )
    if settings.load_in_8bit:
        check_eight_bit([name for name in ("quant_type", "quant_storage") if _is_changed(settings, name)])
        if sharding:
            raise UserError(f"An 8-bit base cannot be sharded by {sharding}: use four bits (no load_in_8bit).")
        return int8_config()
    storage = storage_dtype(settings.quant_storage, compute, sharding)
    return nf4_config(compute, storage, settings.quant_type, double_quant=settings.double_quant)


def storage_dtype(asked: str | None, compute_dtype: str, sharding: str | None) -> str:
    """The dtype packed weights are stored as: bytes, or under FSDP and ZeRO-3 the compute dtype.

    Each unit that is flattened and sharded must be of one dtype ("must flatten tensors with uniform dtype").

    Raises:
        UserError: another one is asked for under sharding, or the name is no dtype.
    """
    if sharding is None:
        return _storage_name(asked)
    if asked is not None and _storage_name(asked) != compute_dtype:
        raise UserError(
            f"bnb_4bit_quant_storage: '{asked}' cannot be sharded by {sharding} beside {compute_dtype} weights "
            f"(one dtype a unit): write {compute_dtype} or leave the key out."
        )
    if asked is None:
        logger.info("4-bit weights are stored as %s, the compute dtype, as %s needs it.", compute_dtype, sharding)
    return compute_dtype


def nf4_config(
    compute_dtype: str, quant_storage: str | None = None, quant_type: str = "nf4", *, double_quant: bool = True
) -> BitsAndBytesConfig:
    """The quantisation of QLoRA: four bits, by default NormalFloat with double quantisation.

    Args:
        compute_dtype: What weights are dequantised to for each product, in any spelling.
        quant_storage: Dtype the packed bytes are stored as (see `storage_dtype`); None for ``uint8``.
        quant_type: ``nf4`` or ``fp4``.
        double_quant: Quantise the scales too.

    Raises:
        UserError: a name is unknown, or bitsandbytes is not installed (with the command to install it).
    """
    import torch
    from transformers import BitsAndBytesConfig

    _need_bitsandbytes()
    if quant_type not in QUANT_TYPES:
        raise UserError(
            f"bnb_4bit_quant_type: '{quant_type}' is none of {', '.join(QUANT_TYPES)}"
            f"{nearest(str(quant_type).lower(), QUANT_TYPES)}."
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quant_type,
        bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=getattr(torch, canonical_dtype_name(compute_dtype, "compute_dtype")),
        bnb_4bit_quant_storage=_storage_name(quant_storage),
    )


def int8_config() -> BitsAndBytesConfig:
    """Eight bits a weight, one scale a row (LLM.int8(), Dettmers et al. 2022).

    On a GPU activations are quantised too, but for outliers above 6; on a CPU weights are dequantised for each product.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    from transformers import BitsAndBytesConfig

    _need_bitsandbytes()
    return BitsAndBytesConfig(load_in_8bit=True)


def freeze_quantized(model: PreTrainedModel, compute_dtype: str | None = None) -> PreTrainedModel:
    """Freeze a base for adapter training, and keep quantised weights in the layout that passes gradients on.

    `peft.prepare_model_for_kbit_training` would also cast every 16-bit parameter to fp32, embeddings and head included
    (2 GB at a vocabulary of 128k and 8B); norms compute in fp32 inside transformers anyway, so nothing is cast here.

    Args:
        model: A base, quantised or not.
        compute_dtype: Compute dtype of 4-bit layers, where it should differ from what was stored with them.
    """
    import torch

    model.requires_grad_(False)
    for module in model.modules():
        # On CPUs with AVX512-BF16 bitsandbytes repacks a layer at its first evaluation, rounding its scales, for a
        # kernel without a backward pass: training after an evaluation would lose the gradient through the layer.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
            if compute_dtype is not None:
                module.compute_dtype = getattr(torch, canonical_dtype_name(compute_dtype, "compute_dtype"))
    return model


def check_four_bits(model: PreTrainedModel) -> None:
    """Refuse to train over 4-bit layers that bitsandbytes computes with wrong values on this CPU (`core.four_bits`).

    Raises:
        UserError: there are such layers.
    """
    if (misread := told_misread(model)) is not None:
        raise UserError(f"{misread}: take a base in 16 bits with method: lora, or a GPU.")


def _is_changed(settings: QuantizationSettings, name: str) -> bool:
    return bool(getattr(settings, name) != getattr(QuantizationSettings(), name))


def _storage_name(asked: str | None) -> str:
    if asked in (None, STORED_BYTES):
        return STORED_BYTES
    return canonical_dtype_name(asked, "bnb_4bit_quant_storage")


def _check_stored_sharding(stored: dict[str, Any], compute: str, sharding: str | None) -> None:
    if sharding is None or stored.get("quant_method") != "bitsandbytes":
        return
    storage = stored.get("bnb_4bit_quant_storage", STORED_BYTES) if stored.get("load_in_4bit") else "int8"
    if storage != compute:
        raise UserError(
            f"The base is stored as {describe_stored(stored)} in {storage}, which {sharding} cannot shard beside "
            f"{compute} weights (one dtype a unit): give the 16-bit model with method: qlora."
        )


def _need_bitsandbytes() -> None:
    import importlib.util

    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("QLoRA needs bitsandbytes, which is not installed: run `pip install bitsandbytes`.")
