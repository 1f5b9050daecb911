"""What needs torch, in stages, run as a process of its own: ``python -m hf_recipes.doctor.environment.stages``.

Before each stage its name is printed, after it its result, as lines of JSON. An error within a stage is its result.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

_SIZE = 64  # of a product tried: a tile of every kernel


def main() -> None:
    """All stages in order."""
    warnings.simplefilter("ignore")
    for name, stage in STAGES.items():
        _tell(stage=name)
        try:
            result = stage()
        except Exception as error:  # whatever a library raises is what is asked here
            result = {"error": _in_one_line(error)}
        _tell(stage=name, result=result)
        if name == "torch" and "error" in result:
            return


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _in_one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:300]


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _devices() -> dict[str, Any]:
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
        complaint = next((str(one.message) for one in told if "driver" in str(one.message).lower()), "")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if not available:
        kind = accelerator.type if accelerator is not None else "cpu"
        return {"kind": kind, "devices": [], "complaint": " ".join(complaint.split())[:300]}
    return {"kind": "cuda", "devices": [_device(index) for index in range(torch.cuda.device_count())], "complaint": ""}


def _device(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    wanted = f"sm_{properties.major}{properties.minor}"
    return {
        "name": properties.name,
        "capability": wanted,
        "built_for": wanted in torch.cuda.get_arch_list() or not torch.cuda.get_arch_list(),
        "free_bytes": free,
        "total_bytes": total,
    }


def _products() -> dict[str, Any]:
    """A product in each dtype, and whether bf16 is computed or emulated."""
    import torch

    device = _place()
    if device == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        bf16 = device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    errors = {}
    for name in ("float32", "bfloat16", "float16"):
        try:
            one = torch.ones(_SIZE, _SIZE, dtype=getattr(torch, name), device=device)
            if float((one @ one)[0, 0]) != _SIZE:
                errors[name] = "a product of ones is wrong"
        except Exception as error:
            errors[name] = _in_one_line(error)
    return {"bf16": bf16, "errors": errors}


def _attention() -> dict[str, Any]:
    """Which kernels of scaled_dot_product_attention run here, and which packages of others there are."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    device = _place()
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    query = torch.zeros(1, 2, 16, 64, dtype=dtype, device=device)
    kernels = []
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        try:
            with sdpa_kernel([getattr(SDPBackend, name)]):
                torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
            kernels.append(name.removesuffix("_ATTENTION").lower())
        except (RuntimeError, AttributeError):
            continue
    packages = {}
    for module in ("flash_attn", "flash_attn_interface"):
        if importlib.util.find_spec(module) is not None:
            packages[module] = _imports(module)
    return {"sdpa": kernels, "packages": packages}


def _imports(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:
        return _in_one_line(error)
    return ""


def _bitsandbytes() -> dict[str, Any]:
    """A product with a weight in 4 bits, as QLoRA makes it."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return {"installed": False}
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.linspace(-1, 1, 64 * 64, dtype=torch.float32, device=_place()).reshape(64, 64)
    packed, state = quantize_4bit(weight, quant_type="nf4")
    error = float((dequantize_4bit(packed, state) - weight).abs().max())
    # NF4's widest step is 0.304 of a block's largest value, so no value is off by more than half of it.
    return {"installed": True, "largest_error": error, "sound": error < 0.16}


def _place() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "devices": _devices,
    "products": _products,
    "attention": _attention,
    "bitsandbytes": _bitsandbytes,
}

if __name__ == "__main__":
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    main()
