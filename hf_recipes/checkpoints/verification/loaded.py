"""Loads a model or an adapter as its users would, strictly, and runs it once: level "reload" of a verification."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.checkpoints.manifest import Manifest
from hf_recipes.checkpoints.probe import answer_probe, compare_probe
from hf_recipes.checkpoints.verification.adapter import CONFIG_NAME as ADAPTER_CONFIG
from hf_recipes.checkpoints.verification.adapter import is_half
from hf_recipes.checkpoints.verification.findings import Findings, some
from hf_recipes.checkpoints.verification.loaded_adapter import adapter_on, compare_adapter_keys, why_not_loaded
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts
from hf_recipes.core.bounded_json import parse_json
from hf_recipes.core.errors import first_line

CONFIG = "config.json"
_IDS = 16
# The largest difference to the probe that is rounding and not damage, as a share of the largest logit: 16 units in the
# last place, as other machines and kernels add in another order in every layer. GPUs may multiply fp32 as TF32, which
# has the places of fp16; kernels for quantised weights round once more.
_UNITS = 16
_LAST_PLACE = {"float32": 2**-11, "float16": 2**-11, "bfloat16": 2**-8}
_CLEAR_UPDATE = 1e-2  # of lora_B
# No code from the model's directory, no pickle, nothing fetched.
_SAFELY: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True, "use_safetensors": True}


def check_loaded(
    directory: Path,
    scans: Mapping[str, FileScan],
    bases: Mapping[str, Path | None],
    manifest: Manifest | None,
    findings: Findings,
) -> None:
    """Load what the directory holds: the model of its config.json, and each adapter upon its base.

    Args:
        bases: for each folder with an adapter its base, None where there is none on this machine.
    """
    if findings.problems:
        findings.note("It was not loaded by transformers: the problems come first.")
        return
    probe = manifest.extra.get("probe") if manifest else None
    probe = probe if isinstance(probe, dict) and probe.get("logits") else None
    if _holds_model(scans):
        _check_model(directory, probe, findings)
    for folder, base in bases.items():
        _check_adapter(directory / folder, folder, base, scans, probe if folder == "" else None, findings)
    if not bases and not _holds_model(scans):
        findings.note("It was not loaded by transformers: there is no model.safetensors with a config.json here.")


def _holds_model(scans: Mapping[str, FileScan]) -> bool:
    weights = ("model.safetensors", "model.safetensors.index.json")
    return CONFIG in scans and ADAPTER_CONFIG not in scans and any(name in scans for name in weights)


def _check_model(directory: Path, probe: dict[str, Any] | None, findings: Findings) -> None:
    loaded = _load(directory, CONFIG, findings)
    if loaded is None:
        return
    model, told = loaded
    for kind, what in (
        ("missing_keys", "is in the model, but in no file: it was initialised anew"),
        ("unexpected_keys", "is in the file, but not in the model: transformers drops it"),
        ("mismatched_keys", "has another shape than the model"),
        ("error_msgs", "was not loaded"),
    ):
        for key in sorted(map(str, told.get(kind) or ())):
            findings.problem(CONFIG, what, key)
    _check_answers(model, CONFIG, probe, findings)


def _check_adapter(
    directory: Path,
    folder: str,
    base: Path | None,
    scans: Mapping[str, FileScan],
    probe: dict[str, Any] | None,
    findings: Findings,
) -> None:
    prefix = f"{folder}/" if folder else ""
    config_name, weights = f"{prefix}{ADAPTER_CONFIG}", scans.get(f"{prefix}adapter_model.safetensors")
    if base is None:
        named = scans[config_name].content.get("base_model_name_or_path")
        missing = f"its base '{named}' is not on this machine" if named else "it names no base"
        findings.note(f"{config_name}: {missing}, so it was not loaded (give the base with --base).")
        return
    if weights is None or not weights.tensors:
        findings.note(f"{config_name}: the adapter is not one safetensors file: not loaded.")
        return
    if why := why_not_loaded(scans[config_name].content):
        findings.note(f"{config_name}: {why}: not loaded.")
        return
    loaded = _load(base, config_name, findings)
    if loaded is None:
        return
    plain = _answer(loaded[0])
    try:
        with _quiet():
            model = adapter_on(loaded[0], directory)
    except Exception as error:
        findings.problem(config_name, f"PEFT cannot load it upon {base} ({_in_one_line(error)})")
        return
    compare_adapter_keys(model, set(weights.tensors), f"{prefix}adapter_model.safetensors", findings)
    logits = _check_answers(model, config_name, probe, findings)
    if logits is not None and plain is not None and logits.shape == plain.shape and torch.equal(logits, plain):
        _tell_no_effect(config_name, weights.tensors, findings)


def _tell_no_effect(name: str, tensors: Mapping[str, TensorFacts], findings: Findings) -> None:
    """The adapter changes no answer: what it has just begun to learn may vanish in 16 bits, larger values cannot."""
    largest = max((facts.abs_max or 0.0 for tensor, facts in tensors.items() if is_half(tensor, "B")), default=0.0)
    what = "changes no answer of its base"
    if largest >= _CLEAR_UPDATE:
        findings.problem(name, f"{what}, though its lora_B hold values up to {largest:.2g}")
    elif largest:
        findings.note(f"{name}: it {what} to the ids tried; its lora_B are no larger than {largest:.2g}.")


def _load(directory: Path, name: str, findings: Findings) -> tuple[nn.Module, dict[str, Any]] | None:
    """The model in `directory` on the CPU in its stored dtype, and what transformers says of its keys."""
    import transformers

    config = _read_config(directory)
    if why := _why_not_loaded(config):
        findings.note(f"{name}: {why}: not loaded.")
        return None
    kind = next(iter(config.get("architectures") or ()), "AutoModelForCausalLM")
    try:
        with _quiet():
            model, told = getattr(transformers, kind).from_pretrained(
                directory, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, **_SAFELY
            )
    except ImportError as error:
        findings.note(f"{name}: loading needs what is not installed here ({_in_one_line(error)}).")
    except Exception as error:
        if config.get("quantization_config"):  # most methods need a GPU, and say so in their own ways
            findings.note(f"{name}: the quantised model could not be loaded here ({_in_one_line(error)}).")
        else:
            findings.problem(name, f"transformers cannot load it ({_in_one_line(error)})")
    else:
        return model.eval(), told
    return None


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config = parse_json((directory / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _why_not_loaded(config: Mapping[str, Any]) -> str | None:
    """Why transformers itself cannot make this model, without running code that the directory or the Hub brings."""
    import transformers

    kind, classes = config.get("model_type"), config.get("architectures") or []
    if kind not in transformers.CONFIG_MAPPING:
        return f"this transformers knows no model_type '{kind}', and no other code is run"
    if not isinstance(classes, list) or not all(
        isinstance(made, str) and hasattr(getattr(transformers, made, None), "from_pretrained") for made in classes[:1]
    ):
        return f"transformers has no class {some([str(made) for made in classes])}, and no other code is run"
    kernels = [key for key, value in config.items() if key.endswith("_implementation") and "/" in str(value)]
    return f"its {some(kernels)} would run code from the Hub" if kernels else None


def _check_answers(model: nn.Module, name: str, probe: dict[str, Any] | None, findings: Findings) -> Tensor | None:
    logits = _answer(model)
    if logits is None:
        findings.note(f"{name}: {type(model).__name__} does not answer to token ids alone: loaded, but not run.")
        return None
    if not logits.isfinite().all():
        findings.problem(name, "answers with NaN or Inf")
    elif probe:
        _check_probe(model, name, probe, findings)
    return logits


def _check_probe(model: nn.Module, name: str, probe: dict[str, Any], findings: Findings) -> None:
    """Compare with what the model answered when it was saved."""
    try:
        difference = compare_probe(probe, answer_probe(model, probe))
        largest = max(abs(float(value)) for value in probe["logits"])
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        findings.note(f"{name}: the answers kept in the manifest could not be compared ({_in_one_line(error)}).")
        return
    stored = str(next(model.parameters()).dtype).removeprefix("torch.")
    dtypes = {stored, str(probe.get("dtype"))}
    bound = _UNITS * largest * max(_LAST_PLACE.get(dtype, _LAST_PLACE["bfloat16"]) for dtype in dtypes)
    bound *= 2 if probe.get("quantization") else 1
    what = f"its logits differ by up to {difference:.2g} from those when it was saved (largest {largest:.2g})"
    if math.isnan(difference) or difference > bound:
        findings.problem(name, f"{what}: more than {stored} rounding explains")
    elif difference:
        findings.note(f"{name}: {what}: within what rounding explains.")


def _answer(model: nn.Module) -> Tensor | None:
    """Logits for fixed ids, None where the model asks for more than ids."""
    try:
        rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        ids = torch.tensor([[(place * 7919 + 1) % rows for place in range(_IDS)]])
        with torch.no_grad(), _quiet():
            logits = getattr(model(input_ids=ids), "logits", None)
    except Exception:
        return None
    return logits.float() if isinstance(logits, Tensor) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """What transformers and PEFT would warn of and draw is found and told here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(str(error))[:200]}"
