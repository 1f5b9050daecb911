"""An adapter loaded upon its base by PEFT, which only warns of keys that do not match: here they are problems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hf_recipes.checkpoints.verification.findings import Findings

_OURS = "HF_RECIPES_BOTTLENECK"


def why_not_loaded(config: Mapping[str, Any]) -> str | None:
    """Why an adapter of this adapter_config.json is not to be loaded: unknown to this PEFT, or it imports by name."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind = str(config.get("peft_type"))
    if kind == _OURS:
        # Importing the method makes it known to PEFT; nothing else of that room is used.
        import hf_recipes.models.methods.bottleneck_layer  # noqa: F401
    elif kind not in {str(getattr(known, "value", known)) for known in PEFT_TYPE_TO_CONFIG_MAPPING}:
        return f"this PEFT knows no method {kind}"
    if config.get("megatron_config"):
        return "it names a module to import (megatron_core), which is not done here"
    return None


def adapter_on(base: nn.Module, directory: Path) -> Any:
    """The adapter in `directory` upon `base`, as PEFT loads it; raises whatever PEFT raises."""
    from peft import PeftModel

    return PeftModel.from_pretrained(base, directory).eval()


def compare_adapter_keys(model: Any, stored: set[str], file: str, findings: Findings) -> None:
    """Add a problem for each tensor of the adapter that the file lacks, and each of the file that goes nowhere."""
    from peft import get_peft_model_state_dict

    # Embeddings may be stored besides: asking PEFT whether they are would ask the Hub about the base model.
    wanted = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    for name in sorted(wanted - stored):
        findings.problem(file, "is missing: PEFT leaves it as it was initialised", name)
    for name in sorted(stored - wanted - set(model.state_dict())):
        findings.problem(file, "fits nowhere in the model: PEFT drops it", name)
