"""A PEFT adapter on disk, read as what it says about each parameter of the model; no tensor unaccounted for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import FLOATS, DamagedFile, TensorEntry, read_header
from hf_recipes.export.algebra import pattern_value, scale_of
from hf_recipes.export.config_types import check_adapter_config
from hf_recipes.export.edits import Edit as Edit
from hf_recipes.export.edits import Scaling as Scaling
from hf_recipes.export.methods import refuse_unsupported
from hf_recipes.export.pairs import LoraPair as LoraPair

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LORA = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector)(\.weight)?$"
)
_IA3 = re.compile(r"^(?P<module>.+)\.ia3_l$")
_ROWS = re.compile(r"^(?P<module>.+)\.token_adapter\.trainable_tokens_delta$")
# State that MonteCLoRA and VeLoRA need to go on training; a trained model is computed from A and B alone.
_TRAINING_ONLY = re.compile(r"\.(lora_monteclora_sampler\.[^.]+|lora_velora_embed)$")
_UNDERNEATH = re.compile(r"\.(token_adapter\.base_layer|base_layer|original_module)\.")


@dataclass(frozen=True)
class Adapter:
    """An adapter's directory, its configuration, its tensors, and the edits they make by in-memory parameter name."""

    directory: Path
    config: dict[str, Any]
    entries: dict[str, TensorEntry]
    edits: dict[str, Edit]


def read_adapter(directory: Path) -> Adapter:
    """Read the headers of a PEFT adapter.

    Raises:
        UserError: no adapter there, a damaged file, a method that cannot be merged, half a pair, a rank that is not the
            configured one, or a tensor of unknown kind; each named.
    """
    config = read_config(directory)
    refuse_unsupported(config, str(directory))
    entries = _without_training_state(_read_entries(directory))
    _check_dtypes(directory, entries)
    return Adapter(directory, config, entries, read_edits(entries.values(), config))


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed ``adapter_config.json``; raises `UserError` if there is none, or it is damaged."""
    file = directory / CONFIG_NAME
    if not file.is_file():
        raise UserError(f"'{directory}' is not an adapter (no {CONFIG_NAME} in it): give the directory PEFT saved.")
    try:
        config = read_json(file)
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): save the adapter again.") from None
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object: save the adapter again.")
    check_adapter_config(config, file)
    return config


def _read_entries(directory: Path) -> dict[str, TensorEntry]:
    file = directory / WEIGHTS_NAME
    if not file.is_file():
        old = " Its adapter_model.bin is a pickle: load it with peft and save_pretrained it."
        raise UserError(f"{file} is missing.{old if (directory / 'adapter_model.bin').is_file() else ''}")
    try:
        entries, _ = read_header(file)
    except DamagedFile as error:
        raise UserError(f"The adapter is damaged: {error}; save it again or take another checkpoint.") from None
    if not entries:
        raise UserError(f"{file} holds no tensor: the adapter was saved empty, so there is nothing to merge.")
    for name, entry in entries.items():
        if 0 in entry.shape:
            raise UserError(
                f"{file}: '{name}' has shape {list(entry.shape)}: the ranks' shards were not gathered at the save."
            )
    return entries


def _without_training_state(entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    kept = {name: entry for name, entry in entries.items() if not _TRAINING_ONLY.search(name)}
    if len(kept) < len(entries):
        logger.info(
            "%d adapter tensors matter in training only (samples, projections) and are no part of the merged model.",
            len(entries) - len(kept),
        )
    return kept


def _check_dtypes(directory: Path, entries: Mapping[str, TensorEntry]) -> None:
    """Whole numbers and complex ones are no weights; eight bits hold no update as it was trained."""
    other = [entry for entry in entries.values() if entry.dtype not in FLOATS]
    if other:
        raise UserError(
            f"{len(other)} of {len(entries)} tensors of the adapter {directory} are no floats of 16 bits or more "
            f"('{other[0].name}' is {other[0].dtype}): save it in fp32, bf16 or fp16."
        )


def read_edits(entries: Iterable[TensorEntry], config: Mapping[str, Any]) -> dict[str, Edit]:
    """Sort an adapter's tensors by the parameter they bear on (``model.layers.0.self_attn.q_proj.weight`` …).

    Raises:
        UserError: as `read_adapter`.
    """
    edits: dict[str, Edit] = {}
    pairs: dict[str, dict[str, TensorEntry]] = {}
    is_ia3 = config.get("peft_type") == "IA3"
    for entry in entries:
        name = entry.name.removeprefix(_PREFIX)
        if is_ia3 and (match := _IA3.match(name)):
            _edit(edits, f"{match['module']}.weight", entry).scaling = _scaling(match["module"], entry, config)
        elif not is_ia3 and (match := _LORA.match(name)):
            pairs.setdefault(match["module"], {})[match["part"]] = entry
        elif match := _ROWS.match(name):
            edit = _edit(edits, f"{match['module']}.weight", entry)
            edit.rows, edit.indices = entry, _token_indices(match["module"], entry, config)
        else:
            _read_full_tensor(edits, name, entry, config)
    for module, parts in pairs.items():
        _read_pair(edits, module, parts, config)
    return edits


def _edit(edits: dict[str, Edit], parameter: str, *entries: TensorEntry) -> Edit:
    edit = edits.setdefault(parameter, Edit())
    edit.names += [entry.name for entry in entries]
    return edit


def _read_full_tensor(edits: dict[str, Edit], name: str, entry: TensorEntry, config: Mapping[str, Any]) -> None:
    """A whole parameter: trained (`modules_to_save`, biases), or the base's own, saved along with the adapter.

    PEFT saves embeddings that were resized or targeted, and names what lies under a wrapper ``base_layer`` or
    ``original_module``; a trained bias lies under the wrapper too.
    """
    if any(part in name for part in ("lora_", "ia3_", "trainable_tokens")) or not entry.dtype.startswith(("F", "BF")):
        raise UserError(f"Adapter tensor '{entry.name}' is of a kind that is not known here: nothing was merged.")
    parameter = _UNDERNEATH.sub(".", name).replace(".modules_to_save.", ".")
    # With `bias` set PEFT also saves the bias of a module whose trained copy took its place: that one is not in use.
    trained_bias = name.endswith(".bias") and config.get("bias") in ("all", "lora_only")
    trained_bias = trained_bias and ".original_module." not in name
    trained = not _UNDERNEATH.search(name) and _is_saved_module(parameter, config)
    role = "value" if trained or trained_bias else "base"
    edit = _edit(edits, parameter, entry)
    known: TensorEntry | None = getattr(edit, role)
    if known is not None and known.read() != entry.read():
        raise UserError(f"Adapter tensors '{known.name}' and '{entry.name}' claim to be the same and differ.")
    setattr(edit, role, entry)


def _is_saved_module(parameter: str, config: Mapping[str, Any]) -> bool:
    """Whether a parameter lies in one of `modules_to_save`, which PEFT matches by the end of a module's name."""
    parts = parameter.split(".")
    modules = [".".join(parts[:end]) for end in range(1, len(parts))]
    return any(module.endswith(saved) for saved in config.get("modules_to_save") or () for module in modules)


def _token_indices(module: str, entry: TensorEntry, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The rows that `entry` holds. A tied head without indices of its own follows those of the embedding."""
    given = config.get("trainable_token_indices") or ()
    if isinstance(given, dict):
        own = [indices for name, indices in given.items() if f".{module}".endswith(f".{name}")]
        given = own[0] if own else next(iter(given.values()))
    rows = entry.shape[0] if entry.shape else 0
    if len(given) != rows or not given:
        raise UserError(
            f"Adapter tensor '{entry.name}' has {rows} rows, but {CONFIG_NAME} names {len(given)} tokens "
            "(trainable_token_indices): the two files do not belong together."
        )
    return tuple(given)


def _scaling(module: str, entry: TensorEntry, config: Mapping[str, Any]) -> Scaling:
    """Whether a vector is one of inputs, is decided by its module's name, as in `peft.IA3Model`."""
    named = config.get("feedforward_modules") or ()
    of_inputs = bool(re.fullmatch(named, module)) if isinstance(named, str) else module.endswith(tuple(named))
    is_convolution = len(entry.shape) > 2  # (1, channels, 1, …) for inputs and outputs alike
    others = (*entry.shape[:1], *entry.shape[2:]) if is_convolution else (entry.shape[0 if of_inputs else -1],)
    if set(others) != {1}:
        raise UserError(
            f"'{entry.name}' has shape {list(entry.shape)}, but by {CONFIG_NAME} (feedforward_modules) it scales the "
            f"{'inputs' if of_inputs else 'outputs'} of its layer: the two files do not belong together."
        )
    return Scaling(entry, of_inputs)


def _read_pair(edits: dict[str, Edit], module: str, parts: dict[str, TensorEntry], config: Mapping[str, Any]) -> None:
    embedding = any("embedding" in part for part in parts)
    halves = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
    for half in halves:
        if half not in parts:
            raise UserError(
                f"Half an adapter: '{next(iter(parts.values())).name}' stands without '{_PREFIX}{module}.{half}'; "
                "save it again or take another checkpoint."
            )
    a, b = (parts.pop(half) for half in halves)
    magnitude = parts.pop("lora_magnitude_vector", None)
    if bool(config.get("use_dora")) != (magnitude is not None):
        state = "is missing, though use_dora is set" if magnitude is None else "is there, though use_dora is not set"
        raise UserError(f"'{_PREFIX}{module}.lora_magnitude_vector' {state}: weights and {CONFIG_NAME} do not agree.")
    scale = _scale(module, a, b, config)
    edit = _edit(edits, f"{module}.weight", a, b, *([magnitude] if magnitude else []))
    edit.lora = LoraPair(a, b, scale, embedding, magnitude)
    if bias := parts.pop("lora_B.bias", None):
        _edit(edits, f"{module}.bias", bias).bias = (bias, scale)
    if parts:
        names = ", ".join(entry.name for entry in parts.values())
        raise UserError(f"Adapter tensors {names} do not go together: '{module}' has LoRA of two kinds.")


def _number(value: Any, key: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{CONFIG_NAME}: '{key}' is {value!r}, not a number: the file is damaged.")
    return value


def _scale(module: str, a: TensorEntry, b: TensorEntry, config: Mapping[str, Any]) -> float:
    rank = _number(pattern_value(config.get("rank_pattern") or {}, module, config.get("r", 8)), "r")
    if len(a.shape) > 2 and len(b.shape) > 2 and a.shape[0] == rank and b.shape[1] < rank and rank % b.shape[1] == 0:
        raise UserError(
            f"'{a.name}' is on a convolution of {rank // b.shape[1]} groups, and its update joins channels that the "
            "layer's weight keeps apart, so no weight can hold it: use the adapter unmerged, through peft."
        )
    same_kind = 1 < len(a.shape) == len(b.shape) < 6 and set(b.shape[2:]) <= {1}
    if config.get("target_parameters"):  # a pair's rank and factor hang on the parameter: `experts.with_parameters`
        rank = a.shape[0]
    if not same_kind or a.shape[0] != rank or b.shape[1] != rank:
        raise UserError(
            f"'{a.name}' {list(a.shape)} and '{b.name}' {list(b.shape)} are not of rank {rank}, which {CONFIG_NAME} "
            "gives them: the two files do not belong together."
        )
    alpha = _number(pattern_value(config.get("alpha_pattern") or {}, module, config.get("lora_alpha", 8)), "lora_alpha")
    return scale_of(alpha, rank, bool(config.get("use_rslora")))
