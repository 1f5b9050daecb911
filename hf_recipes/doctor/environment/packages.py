"""Which packages are installed, and which of their own requirements what is installed does not meet."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from hf_recipes.doctor.environment.facts import Packages, Unmet

# Whose requirements are looked at, where installed: what a run is made of, and what is built for one version of torch.
LOOKED_AT = (
    *("hf-recipes", "torch", "torchvision", "torchaudio", "triton", "transformers", "trl", "peft", "accelerate"),
    *("datasets", "bitsandbytes", "deepspeed", "safetensors", "tokenizers", "huggingface-hub", "numpy", "xformers"),
    *("flash-attn", "liger-kernel", "cut-cross-entropy", "torchao", "kernels", "vllm", "unsloth", "axolotl"),
    *("llamafactory", "ms-swift", "evaluate", "wandb"),
)


def installed_packages() -> Packages:
    """Read the metadata of everything installed; some tens of milliseconds, nothing is imported."""
    found: dict[str, str] = {}
    places: Counter[str] = Counter()
    required: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] if distribution.metadata else None
        if not name:
            continue
        key = canonicalize_name(name)
        places[key] += 1
        if key in found:  # the first on the path is what is imported
            continue
        found[key] = distribution.version
        if key in LOOKED_AT:
            required[key] = list(distribution.requires or ())
    doubled = tuple(sorted(name for name in LOOKED_AT if places[name] > 1))
    return Packages({name: found[name] for name in LOOKED_AT if name in found}, unmet(required, found), doubled)


def unmet(required: Mapping[str, Iterable[str]], installed: Mapping[str, str]) -> tuple[Unmet, ...]:
    """What is required and not met.

    Args:
        required: requirements as the metadata of each package writes them; those of extras are passed over, unless
            the package they name is installed in another version.
        installed: version by canonical name.
    """
    found = []
    for package, lines in required.items():
        for line in lines:
            with suppress(InvalidRequirement, InvalidVersion):
                requirement = Requirement(line)
                if not _applies(requirement):
                    continue
                version = installed.get(canonicalize_name(requirement.name))
                if version is None or not requirement.specifier.contains(version, prereleases=True):
                    shown = f"{requirement.name}{requirement.specifier}"
                    found.append(Unmet(package, shown, version))
    return tuple(found)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
