"""DDP, FSDP, DeepSpeed, and models spread over devices."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13, provoked"
_DEEPSPEED = "deepspeed 0.19, provoked"

SIGNATURES: dict[str, Signature] = {
    "unused_parameters": Signature(
        needle="Expected to have finished reduction in the prior iteration",
        cause="Some trainable parameters took no part in the loss, and DDP waits for their gradients.",
        cure="freeze or remove them (a vision tower, an unused head, experts); else ddp_find_unused_parameters: true, "
        "which costs a pass over the graph",
        example="RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
        "This error indicates that your module has parameters that were not used in producing loss.",
        seen=_TORCH,
    ),
    "ready_twice": Signature(
        needle="Expected to mark a variable ready only once",
        cause="A parameter's gradient came twice in one backward pass under DDP: activation checkpointing of the "
        "reentrant kind with shared or unused parameters.",
        cure="gradient_checkpointing_kwargs: {use_reentrant: false}; ddp_find_unused_parameters: false",
        example="RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the "
        "following "
        "reasons: 1) Use of a module parameter outside the `forward` function. …",
        seen="torch 2.13 (libtorch)",
    ),
    "models_differ": Signature(
        needle="DDP expects same model across all ranks",
        cause="The ranks built models with different parameters.",
        cure="the same recipe, tokenizer and model files on all machines; resize embeddings alike",
        example="RuntimeError: DDP expects same model across all ranks, but Rank 0 has 34 params, while rank 1 has "
        "inconsistent 0 params.",
        seen="torch 2.13 (libtorch)",
    ),
    "fsdp_dtypes": Signature(
        needle="Must flatten tensors with uniform dtype",
        pattern=r"but got (?P<first>torch\.\w+) and (?P<second>torch\.\w+)",
        cause="FSDP found <first> and <second> in one unit: adapters in fp32 on a 16-bit base, or 4-bit weights stored "
        "as bytes.",
        cure="load and train in one dtype (dtype: bf16); QLoRA under FSDP: bnb_4bit_quant_storage equal to the compute "
        "dtype (bfloat16); FSDP2 allows mixed ones (strategy: fsdp; fsdp_version: 2 in a file of accelerate)",
        example="ValueError: Must flatten tensors with uniform dtype but got torch.float32 and torch.bfloat16",
        seen=_TORCH,
    ),
    "fsdp_requires_grad": Signature(
        needle="Must flatten tensors with uniform `requires_grad`",
        cause="FSDP found trained and frozen parameters in one unit (an adapter on a frozen base).",
        cure="strategy: fsdp, which is FSDP2; in a file of accelerate fsdp_version: 2, or fsdp_use_orig_params: true",
        example="ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`",
        seen="torch 2.13 (torch/distributed/fsdp/_flat_param.py)",
    ),
    "fsdp_layer_class": Signature(
        needle="Could not find the transformer layer class",
        pattern=r"layer class (?P<name>\S+) in the model",
        cause="The FSDP configuration names a layer class, <name>, that this model does not have.",
        cure="in the file of accelerate fsdp_transformer_layer_cls_to_wrap: the model's own (LlamaDecoderLayer, "
        "Qwen2DecoderLayer), or leave it out",
        example="ValueError: Could not find the transformer layer class LlamaDecoderLayer in the model.",
        seen="accelerate 1.15 (accelerate/utils/dataclasses.py)",
    ),
    "zero3_empty_tensor": Signature(
        needle="shape torch.Size([0])",
        pattern=r"shape torch\.Size\(\[0\]\) from checkpoint",
        cause="The saved file holds empty tensors: it was written under ZeRO-3 without gathering the shards.",
        cure="the weights are not in it: take another checkpoint, or python zero_to_fp32.py . in its folder; save with "
        "stage3_gather_16bit_weights_on_model_save: true in the file of DeepSpeed (hf-recipes checks the first save)",
        example="size mismatch for base_model.model.lm_head.weight: copying a param with shape torch.Size([0]) from "
        "checkpoint, the shape in current model is torch.Size([32000, 4096]).",
        seen=_TORCH,
    ),
    "zero3_weight_not_gathered": Signature(
        needle="'weight' must be 2-D",
        cause="A weight is empty on this rank: ZeRO-3 or FSDP shards it, and it was used without being gathered "
        "(generation, an embedding outside of the wrapped model, a reference model).",
        cure="generate(…, synced_gpus=True) in transformers; with deepspeed.zero.GatheredParameters(…) around direct "
        "use; or ZeRO-2",
        example="RuntimeError: 'weight' must be 2-D",
        seen=_TORCH,
    ),
    "deepspeed_mismatch": Signature(
        needle="DeepSpeed config values that mismatch TrainingArguments",
        cause="The DeepSpeed file fixes values that the recipe sets otherwise; the lines below name them.",
        cure="write 'auto' for them in the DeepSpeed file, or leave the file out: strategy: zero2 writes one",
        example="ValueError: Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:",
        seen="transformers 5.24, provoked",
    ),
    "deepspeed_batch": Signature(
        needle="Check batch related parameters",
        pattern=r"world_size (?P<batch>\d+) != (?P<product>[\d* ]+)",
        cause="DeepSpeed's train_batch_size (<batch>) is not micro-batch × accumulation × ranks (<product>).",
        cure="write 'auto' for train_batch_size, or leave it out",
        example="AssertionError: Check batch related parameters. train_batch_size is not equal to "
        "micro_batch_per_gpu * "
        "gradient_acc_step * world_size 32 != 4 * 2 * 1",
        seen=_DEEPSPEED,
    ),
    "deepspeed_cuda": Signature(
        needle="DeepSpeed Op Builder: Installed CUDA version",
        pattern=r"Installed CUDA version (?P<own>[\d.]+) does not match the version torch was compiled with "
        r"(?P<torch>[\d.]+), unable",
        cause="DeepSpeed compiles an operation with CUDA <own>, and torch was built with <torch>.",
        cure="install the toolkit of torch's version and point CUDA_HOME to it; between minor versions "
        "DS_SKIP_CUDA_CHECK=1",
        example="deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA "
        "version "
        "12.1 does not match the version torch was compiled with 11.8, unable to compile cuda/cpp extensions …",
        seen="deepspeed 0.19 (op_builder/builder.py)",
    ),
    "deepspeed_no_cuda": Signature(
        needle="CUDA_HOME does not exist",
        cause="DeepSpeed wants to compile CUDA operations and finds no toolkit.",
        cure="install it and set CUDA_HOME; or use an optimizer that needs none (optim: adamw_torch, no offload)",
        example="deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to "
        "compile CUDA "
        "op(s)",
        seen="deepspeed 0.19 (op_builder/builder.py)",
    ),
    "extension_build": Signature(
        needle="Error building extension",
        pattern=r"Error building extension '(?P<name>\w+)'",
        cause="The operation <name> could not be compiled; the compiler's words stand above it.",
        cure="a C++ compiler that fits (g++ 9 to 13), ninja and python3-dev; remove the operation's folder under "
        "~/.cache/torch_extensions and try again",
        example="RuntimeError: Error building extension 'cpu_adam'",
        seen="torch 2.13 (torch/utils/cpp_extension.py)",
    ),
    "no_ninja": Signature(
        needle="Ninja is required to load C++ extensions",
        cause="Operations are compiled at first use, and ninja is not there.",
        cure="pip install ninja",
        example="RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
        seen=_TORCH,
    ),
    "offload_optimizer": Signature(
        needle="You are using ZeRO-Offload with a client provided optimizer",
        cause="ZeRO-Offload moves optimizer states to the CPU, and this optimizer is not made for it.",
        cure="an optimizer in the DeepSpeed file (AdamW), or optim: adamw_torch without offload",
        example="ZeRORuntimeException: You are using ZeRO-Offload with a client provided optimizer (<class "
        "'torch.optim.adamw.AdamW'>) which in most cases will yield poor performance.",
        seen="deepspeed 0.19 (runtime/engine.py)",
    ),
    "device_map_zero3": Signature(
        needle="DeepSpeed Zero-3 is not compatible with",
        cause="ZeRO-3 places weights itself, and device_map (or low_cpu_mem_usage) would place them too.",
        cure="leave device_map out",
        example="ValueError: DeepSpeed Zero-3 is not compatible with passing a `device_map`.",
        seen="transformers 5.24, provoked",
    ),
    "device_map_auto": Signature(
        needle="You can't train a model that has been loaded ",
        pattern=r"device_map='auto'|on a different device",
        cause="The model was spread over devices or put on another one (device_map), and the launcher gives each rank "
        "one.",
        cure="leave device_map out in a distributed launch; one device a rank (device_map={'': local_rank} by hand)",
        example="ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed "
        "mode. Please rerun your script specifying `--num_processes=1` or by launching with `python …",
        seen="accelerate 1.15 (accelerate/accelerator.py)",
    ),
    "two_devices": Signature(
        needle="Expected all tensors to be on the same device",
        pattern=r"(?P<first>cuda:\d+|cpu|meta)\b(?: and |.*different from other tensors on |, "
        r")(?P<second>cuda:\d+|cpu|meta)",
        cause="Tensors of one operation lie on two devices (<first>, <second>): device_map spread the model, or "
        "something "
        "was built beside it and not moved.",
        cure="leave device_map out; move what you add to model.device",
        example="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:0 and "
        "cuda:1!",
        seen="torch 2.13 (libtorch)",
    ),
    "meta_tensor": Signature(
        needle="Cannot copy out of meta tensor",
        cause="Some weights were never loaded: they are missing in the checkpoint, or were left on disk by offloading.",
        cure="load without device_map and offload; look at the missing keys told while loading",
        example="NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() "
        "instead of torch.nn.Module.to() when moving module from meta to a different device.",
        seen=_TORCH,
    ),
}
