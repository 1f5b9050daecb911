"""The adapter as a form: the files that loading needs, checked and copied, nothing of the training."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.core.files import read_json
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.companions import copy_files
from hf_recipes.export.forms.companion_files import COMPANIONS
from hf_recipes.export.staging import staged

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def write_adapter_form(adapter: Path, output: Path) -> list[str]:
    """Copy an adapter with tokenizer and chat template into `output`; returns notices worth telling.

    Raises:
        UserError: it is no adapter, or a damaged one (see `export.adapter.read_adapter`).
        CheckFailed: a value is not finite.
    """
    notices = _check(adapter)
    with staged(output) as staging:
        copy_files(adapter, staging, (CONFIG, WEIGHTS, *COMPANIONS))  # no training_args.bin, no optimizer
    base = str(read_json(output / CONFIG).get("base_model_name_or_path") or "")
    if Path(base).is_absolute():
        notices.append(f"{CONFIG} names its base by a directory of this machine ({base}): elsewhere it is not found.")
    return notices


def _check(adapter: Path) -> list[str]:
    kind = read_json(adapter / CONFIG).get("peft_type")
    if kind in ("LORA", "IA3"):
        from hf_recipes.export.soundness import check_finite

        check_finite(read_adapter(adapter))
        return []
    return [f"The adapter is of type {kind}: copied as it is; only LoRA and IA3 are checked tensor by tensor here."]
