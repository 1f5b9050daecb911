"""GPUs, drivers, kernels, and packages built for others."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_TORCH = "torch 2.13, provoked"

SIGNATURES: dict[str, Signature] = {
    "no_kernel_image": Signature(
        needle="no kernel image is available for execution on the device",
        cause="torch, or an extension (flash-attn, bitsandbytes, apex), holds no code for this GPU: it is newer "
        "or older "
        "than the build.",
        cure="a newer torch for a new GPU (CUDA 12.8 and later for RTX 50 and B200), rebuild the extension on "
        "this machine",
        example="RuntimeError: CUDA error: no kernel image is available for execution on the device",
        seen="CUDA runtime (cudaErrorNoKernelImageForDevice)",
    ),
    "device_assert": Signature(
        needle="device-side assert triggered",
        cause="A kernel read outside of an array: nearly always a token id beyond the vocabulary or a label beyond the "
        "classes; an 'Assertion' line above says which.",
        cure="CUDA_LAUNCH_BLOCKING=1 shows the place; the same batch on a CPU gives a plain error; hf-recipes inspect",
        kind="symptom",
        example="RuntimeError: CUDA error: device-side assert triggered",
        seen="https://github.com/haotian-liu/LLaVA/issues/445",
    ),
    "illegal_access": Signature(
        needle="an illegal memory access was encountered",
        cause="A kernel wrote or read where it must not: a fault of an extension, of indices, or of the device.",
        cure="CUDA_LAUNCH_BLOCKING=1 shows the place; attn_implementation: sdpa and no fused kernels, to find "
        "the one at "
        "fault; update the driver",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        seen="CUDA runtime (cudaErrorIllegalAddress)",
    ),
    "gpu_broken": Signature(
        needle=("uncorrectable ECC", "NVRM: Xid", "fallen off the bus"),
        pattern=r"uncorrectable ECC error encountered|NVRM: Xid.*: (48|63|64|74|79|94|95)\b|GPU has fallen off the bus",
        cause="The GPU itself is in trouble (memory errors, or it fell off the bus).",
        cure="nvidia-smi -q -d ECC, dmesg | grep Xid; drain the machine, and resume on another from the last "
        "checkpoint",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        seen="CUDA runtime (cudaErrorECCUncorrectable), NVIDIA's Xid catalogue",
    ),
    "driver_too_old": Signature(
        needle="driver on your system is too old",
        pattern=r"found version (?P<version>\d+)",
        cause="The driver knows CUDA <version> at most (11040 is 11.4), and torch is built for a newer one.",
        cure="update the driver, or install torch for an older CUDA",
        example="RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update "
        "your GPU "
        "driver by downloading and installing a new version",
        seen="torch (CUDA builds, c10/cuda)",
    ),
    "no_gpu": Signature(
        needle=("Found no NVIDIA driver", "No CUDA GPUs are available", "no NVIDIA GPU detected"),
        pattern=r"Found no NVIDIA driver on your system|No CUDA GPUs are available|no NVIDIA GPU detected",
        cause="No GPU is seen: no driver, a container started without --gpus all, or CUDA_VISIBLE_DEVICES empty.",
        cure="nvidia-smi must work in the same shell; docker run --gpus all; srun --gres=gpu:1",
        example="RuntimeError: No CUDA GPUs are available",
        seen="torch 2.13 (libtorch)",
    ),
    "cpu_build": Signature(
        needle="Torch not compiled with CUDA enabled",
        cause="The installed torch is a CPU build, and something asks for cuda.",
        cure="pip install --force-reinstall torch from the index with CUDA; without a GPU: use_cpu: true",
        example="AssertionError: Torch not compiled with CUDA enabled",
        seen=_TORCH,
    ),
    "device_number": Signature(
        needle="invalid device ordinal",
        cause="A rank asks for a GPU that is not there: more ranks than devices, or CUDA_VISIBLE_DEVICES shows fewer.",
        cure="--num_processes not above the number that nvidia-smi -L shows (in the container)",
        example="RuntimeError: CUDA error: invalid device ordinal",
        seen="CUDA runtime (cudaErrorInvalidDevice)",
    ),
    "forked_cuda": Signature(
        needle="Cannot re-initialize CUDA in forked subprocess",
        cause="CUDA was used before processes were forked (a model on the GPU inside datasets.map or a data loader).",
        cure="dataset_num_proc: 1 and dataloader_num_workers: 0 for that function, or multiprocessing by 'spawn'",
        example="RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must "
        "use the 'spawn' start method",
        seen="torch 2.13 (torch/cuda/__init__.py)",
    ),
    "flash_attention_binary": Signature(
        needle="undefined symbol",
        pattern=r"flash_attn\S*\.so: undefined symbol|undefined symbol.*flash_attn",
        cause="flash-attn was built for another torch than the one installed.",
        cure="pip install --no-build-isolation --force-reinstall flash-attn (it builds for minutes), or "
        "attn_implementation: sdpa",
        example="ImportError: flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: "
        "_ZN3c104cuda9SetDeviceEi",
        seen="https://github.com/Dao-AILab/flash-attention/issues/966",
    ),
    "flash_attention_missing": Signature(
        needle="it cannot be used due to the following error",
        pattern=r"(?P<name>FlashAttention\d?) has been toggled on",
        cause="<name> is asked for and not installed.",
        cure="attn_implementation: sdpa (fast too), or pip install flash-attn --no-build-isolation",
        example="ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following "
        "error: the "
        "package for FlashAttention2 doesn't seem to be installed.",
        seen="transformers 5.24, provoked",
    ),
    "flash_attention_device": Signature(
        needle="FlashAttention only supports Ampere GPUs or newer",
        cause="flash-attn 2 runs on Ampere (A100, RTX 30) and later.",
        cure="attn_implementation: sdpa",
        example="RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        seen="flash-attn (csrc/flash_attn/flash_api.cpp)",
    ),
    "bitsandbytes_setup": Signature(
        needle=("libbitsandbytes", "CUDA Setup failed", "binary not found at", "str2optimizer"),
        pattern=r"libbitsandbytes\w*\.so: cannot open shared object file|CUDA Setup failed despite (GPU|CUDA) being "
        r"available|Configured (CUDA|ROCm) binary not found at|name 'str2optimizer\w+' is not defined",
        cause="bitsandbytes has no library for this version of CUDA, or does not find CUDA.",
        cure="pip install -U bitsandbytes; python -m bitsandbytes says what it looks for; BNB_CUDA_VERSION=126 "
        "picks one",
        example="RuntimeError: CUDA Setup failed despite GPU being available. Please run the following command "
        "to get more "
        "information: python -m bitsandbytes",
        seen="bitsandbytes (cextension.py)",
    ),
    "bitsandbytes_missing": Signature(
        needle=(
            "requires bitsandbytes",
            "latest version of bitsandbytes",
            "PackageNotFoundError: bitsandbytes",
            "found for bitsandbytes",
        ),
        pattern=r"ImportError: .*requires (the latest version of )?bitsandbytes|No package metadata was found for "
        r"bitsandbytes|PackageNotFoundError: bitsandbytes",
        cause="4 or 8 bits are asked for, and bitsandbytes is missing or too old.",
        cure="pip install -U bitsandbytes",
        example="ImportError: Using `bitsandbytes` 4-bit quantization requires bitsandbytes: `pip install -U "
        "bitsandbytes>=0.46.1`",
        seen="transformers 5.24 (quantizers/quantizer_bnb_4bit.py)",
    ),
    "glibc": Signature(
        needle="GLIBC",
        pattern=r"version `(?P<name>GLIBC(XX)?_[\d.]+)' not found",
        cause="A binary package was built on a newer system than this one (<name>).",
        cure="conda install libstdcxx-ng (GLIBCXX), an older wheel, or a container with a newer system",
        example="ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by …)",
        seen="https://github.com/OpenGVLab/InternVL/issues/972",
    ),
    "no_compiler": Signature(
        needle=("No working C++ compiler", "Failed to find C compiler", "InvalidCxxCompiler"),
        pattern=r"No working C\+\+ compiler found|Failed to find C compiler|InvalidCxxCompiler",
        cause="torch.compile or Triton builds code while it runs, and there is no compiler.",
        cure="apt install build-essential python3-dev; or torch_compile: false",
        example="torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
        "torch._inductor.config.cpp.cxx: (None, 'g++')",
        seen=_TORCH,
    ),
    "python_headers": Signature(
        needle="Python.h: No such file or directory",
        cause="Triton or torch.compile builds code against Python, and its headers are not installed.",
        cure="apt install python3-dev (of the version in use)",
        example="fatal error: Python.h: No such file or directory",
        seen="gcc",
    ),
    "compile_failed": Signature(
        needle="torch._dynamo.exc.",
        pattern=r"torch\._dynamo\.exc\.(?P<name>\w+)",
        cause="torch.compile could not compile the model (<name>).",
        cure="torch_compile: false; or TORCH_LOGS=graph_breaks to see where, and a newer torch",
        kind="symptom",
        example="torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        seen="torch 2.13 (torch/_dynamo/exc.py)",
    ),
}
