"""What is trained and how, as plain values: all that memory and time depend on besides the model and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Checkpointing = Literal["off", "every_4", "every_3", "every_2", "selective", "all", "host"]
Loss = Literal["chunked", "trl_chunked", "full", "full_16bit", "split_16bit", "fused"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]

# Share of the decoder layers that are computed once more (`selective` keeps the result of attention).
LAYERS_AGAIN: dict[Checkpointing, float] = {
    "off": 0.0,
    "every_4": 1 / 4,
    "every_3": 1 / 3,
    "every_2": 1 / 2,
    "selective": 1.0,
    "all": 1.0,
    "host": 1.0,
}


@dataclass(frozen=True)
class TrainingSettings:
    """One training job. Which tensors are trained stands in the `Geometry`.

    Attributes:
        method: of the recipe (``full``, ``lora``, ``qlora`` …).
        weights_dtype: what unquantised frozen weights, or all of a full fine-tune, are held in (``float32``,
            ``bfloat16``, ``float16``).
        trained_dtype: what trained weights are held in.
        autocast_dtype: what the Trainer autocasts to; None without autocast.
        quantization: of the linear layers of the base: ``nf4`` (also for fp4), ``int8`` or None.
        double_quantization: of ``nf4``.
        kbit_preparation: fp32 copies of 16-bit parameters, as `peft.prepare_model_for_kbit_training` makes them (this
            package does not).
        optimizer: the Trainer's ``optim``.
        optimizer_state_dtype: where it is not what `optimizer` implies (torchtune's bf16 states).
        micro_batch: rows of one rank's forward pass.
        tokens: length of the longest row, padding included.
        supervised_share: labelled positions among them, of which alone the loss sees logits.
        accumulation: micro-batches of one step.
        attention: implementation.
        padding_mask: the batch has a mask (SDPA then leaves its fused kernel on some devices).
        packed: several samples in a row, kept apart.
        checkpointing: which layers are computed again.
        loss: how head and cross-entropy are computed: ``chunked`` (this package), ``trl_chunked`` (TRL's default),
            ``full`` logits upcast to fp32 (transformers), ``full_16bit`` without the upcast, ``split_16bit``
            with an upcast piece by piece (torchtune), ``fused`` kernels (liger, cut-cross-entropy).
        compiled: torch.compile, which computes pointwise operations again in place of keeping their results.
        quantized_keeps_input: each product with a 4-bit weight keeps its input, as in bitsandbytes before 0.44.
        lora_dropout: above 0 a mask is kept for every adapted layer.
        generates: evaluation generates text in the same process: (rows, tokens) of its cache, or None.
    """

    method: str = "lora"
    weights_dtype: str = "bfloat16"
    trained_dtype: str = "float32"
    autocast_dtype: str | None = "bfloat16"
    quantization: str | None = None
    double_quantization: bool = True
    kbit_preparation: bool = False
    optimizer: str = "adamw_torch_fused"
    optimizer_state_dtype: str | None = None
    micro_batch: int = 1
    tokens: int = 1024
    supervised_share: float = 1.0
    accumulation: int = 1
    attention: Attention = "sdpa"
    padding_mask: bool = False
    packed: bool = False
    checkpointing: Checkpointing = "off"
    loss: Loss = "chunked"
    compiled: bool = False
    quantized_keeps_input: bool = False
    lora_dropout: float = 0.0
    generates: tuple[int, int] | None = None
