"""Versions that are known not to go together and that no package's metadata says; each with where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Clash:
    """`package` must be within `versions` where `beside` is installed (in `beside_versions`)."""

    package: str
    versions: str
    beside: str
    consequence: str
    source: str
    beside_versions: str = ""


CLASHES: tuple[Clash, ...] = (
    Clash(
        "torch", ">=2.6", "transformers", "it refuses to load .bin checkpoints and optimizer states",
        "transformers.utils.import_utils.check_torch_load_is_safe (CVE-2025-32434)",
    ),
    Clash(
        "bitsandbytes", ">=0.46.1", "transformers", "it refuses 4-bit and 8-bit models",
        "transformers.utils.import_utils.BITSANDBYTES_MIN_VERSION", ">=5.24",
    ),
    Clash(
        "torchao", ">=0.16.0", "peft", "every LoRA stops at an ImportError, whether it uses torchao or not",
        "peft.import_utils.TORCHAO_MINIMUM_VERSION", ">=0.21",
    ),
    Clash(
        "flash-attn", ">=2.3.3", "transformers", "attn_implementation: flash_attention_2 is refused",
        "transformers.utils.import_utils.is_flash_attn_2_available", ">=5.24",
    ),
    Clash(
        "liger-kernel", ">=0.8.2", "trl", "use_liger_kernel is refused",
        "trl.import_utils.LIGER_KERNEL_MIN_VERSION", ">=1.16",
    ),
    Clash(
        "numpy", "<2", "torch", "arrays cannot be turned into tensors",
        "release notes of PyTorch 2.3: the first built for NumPy 2", "<2.3",
    ),
)  # fmt: skip


def clashes(versions: Mapping[str, str]) -> list[Clash]:
    """Those of `CLASHES` that hold among installed versions (by canonical name)."""
    return [clash for clash in CLASHES if _holds(clash, versions)]


def _holds(clash: Clash, versions: Mapping[str, str]) -> bool:
    if clash.package not in versions or clash.beside not in versions:
        return False
    try:
        own, beside = (Version(Version(versions[name]).base_version) for name in (clash.package, clash.beside))
    except InvalidVersion:
        return False
    return beside in SpecifierSet(clash.beside_versions) and own not in SpecifierSet(clash.versions)
