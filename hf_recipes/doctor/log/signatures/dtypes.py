"""Dtypes that do not meet, and gradients that are not there."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13, provoked"

SIGNATURES: dict[str, Signature] = {
    "bf16_unsupported": Signature(
        needle="doesn't support bf16",
        cause="bf16: true, and there is no device here that computes it (or no GPU is seen at all).",
        cure="hf-recipes doctor says which; on an older GPU fp16: true, on a CPU use_cpu: true without bf16",
        example="ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the "
        "model on CPU.",
        seen="transformers 5.24, provoked",
    ),
    "mixed_dtypes": Signature(
        needle=("mat1 and mat2 must have", "mat1 and mat2 to have"),
        pattern=r"(expected |^.*)mat1 and mat2 (must|to) have the same dtype, but got:? (?P<first>[\w:]+)"
        r"( != | and )(?P<second>[\w:]+)",
        cause="A product met <first> and <second>: part of the model is in another dtype (an adapter or head in "
        "fp32 on a "
        "16-bit base) and no autocast is on.",
        cure="one dtype throughout (dtype: bf16 with bf16: true); after adding modules: model.to(dtype)",
        example="RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
        seen=_TORCH,
    ),
    "scalar_type": Signature(
        needle="expected scalar type",
        pattern=r"expected scalar type (?P<first>\w+) but found (?P<second>\w+)",
        cause="An operation wanted <first> and got <second>: part of the model is in another dtype.",
        cure="one dtype throughout (dtype: bf16 with bf16: true); QLoRA: bnb_4bit_compute_dtype equal to it",
        example="RuntimeError: expected scalar type Half but found Float",
        seen="torch 2.13 (libtorch)",
    ),
    "no_kernel_for_dtype": Signature(
        needle="not implemented for '",
        pattern=r"\"(?P<name>\w+)\" not implemented for '(?P<dtype>\w+)'",
        cause="The operation <name> does not exist in <dtype> on this device (often: a 16-bit model on the CPU).",
        cure="dtype: fp32 on a CPU; check that the GPU is seen at all (hf-recipes doctor)",
        example="RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
        seen="torch 2.13 (libtorch)",
    ),
    "flash_attention_dtype": Signature(
        needle="FlashAttention only support fp16 and bf16",
        cause="flash-attn got fp32: the model is in fp32 and no autocast is on.",
        cure="dtype: bf16, bf16: true; or attn_implementation: sdpa",
        example="RuntimeError: FlashAttention only support fp16 and bf16 data type",
        seen="flash-attn (csrc/flash_attn/flash_api.cpp)",
    ),
    "no_gradient": Signature(
        needle="does not require grad and does not have a grad_fn",
        cause="Nothing in the loss can be trained: all parameters are frozen, or activation checkpointing cut "
        "the adapter "
        "off from its frozen inputs.",
        cure="see that lora_target_modules name modules of this model; with gradient_checkpointing: "
        "model.enable_input_require_grads(), or gradient_checkpointing_kwargs: {use_reentrant: false}",
        example="RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        seen=_TORCH,
    ),
    "checkpoint_without_gradient": Signature(
        needle="None of the inputs have requires_grad=True",
        cause="Activation checkpointing of the reentrant kind got inputs without gradients: what is inside is "
        "not trained.",
        cure="gradient_checkpointing_kwargs: {use_reentrant: false}, or model.enable_input_require_grads()",
        kind="notice",
        example="UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
        seen=_TORCH,
    ),
    "backward_twice": Signature(
        needle="Trying to backward through the graph a second time",
        cause="backward() was called twice on one loss (a custom loop, or a hidden state kept over steps).",
        cure="compute the loss anew for each backward; detach what is carried over",
        example="RuntimeError: Trying to backward through the graph a second time (or directly access saved "
        "tensors after "
        "they have already been freed).",
        seen=_TORCH,
    ),
    "changed_in_place": Signature(
        needle="modified by an inplace operation",
        cause="A tensor that backward needs was changed in place (a custom module; under DDP, also two forward passes "
        "before one backward).",
        cure="write x = x + y instead of x += y; under DDP broadcast_buffers: false (ddp_broadcast_buffers: false)",
        example="RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.FloatTensor [2]], which is output 0 of Exp, is at version 1; expected version 0 instead.",
        seen=_TORCH,
    ),
    "purely_quantized": Signature(
        needle="fine-tuning on purely quantized models",
        cause="The model is loaded in 4 or 8 bits and has no adapter: quantised weights cannot be trained themselves.",
        cure="method: qlora (a LoRA on it), or load the 16-bit model",
        example="ValueError: You cannot perform fine-tuning on purely quantized models. Please attach trainable "
        "adapters "
        "on top of the quantized model to correctly perform fine-tuning.",
        seen="transformers 5.24, provoked",
    ),
}
