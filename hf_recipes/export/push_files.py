"""Which files of an exported form go to the Hub, and what in them must not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, read_json
from hf_recipes.core.links import why_leads_out
from hf_recipes.core.secrets import holds_likely_secret
from hf_recipes.export.card.facts import is_hub_name
from hf_recipes.export.card.private import last_part, scrubbed

# What belongs to the run and the machine, not to the model: states to resume from, records with paths, pickles.
_OF_THE_RUN = re.compile(
    r"^(optimizer|scheduler|scaler|rng_state|random_states|pytorch_model_fsdp|zero_to_|latest$|global_step)"
    r"|^(run|status|data|plan|evaluation|manifest|verified|trainer_state|conversion)\.json$"
    r"|^events.*\.jsonl$|^report\.html$|\.(bin|pt|pth|pkl|ckpt|log|lock|tmp|part)$|^checkpoint-\d+$"
    r"|^README\.hf_recipes\.md$|^(generations|bad_batches|runs|wandb|profile)$"
)
_WEIGHTS = (".safetensors", ".gguf")
_TEXT = (".json", ".jinja", ".md", ".txt", ".py", ".yaml", ".yml", ".toml", "")
_VOCABULARY = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
_BASE_KEY = "base_model_name_or_path"
_NAME_KEYS = (_BASE_KEY, "_name_or_path", "name_or_path")
_MERGE_REPORT = "hf_recipes_merge.json"


@dataclass(frozen=True)
class PushFiles:
    """What to send, by path in the repository: a file as it is, or bytes in its place.

    `left_out` names what stays here, `changed` what was taken out of a file, in words.
    """

    content: Mapping[str, Path | bytes]
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def files_to_push(directory: Path, base: str | None = None) -> PushFiles:
    """Choose the files of `directory` and clean those that name places on this machine.

    Args:
        base: the base's Hub name, for an adapter whose config names a directory.

    Raises:
        UserError: there are no weights, a file holds a token, an adapter's base is a local directory and `base` is not
            given, something is half-written, or links out of the directory.
    """
    if not directory.is_dir():
        raise UserError(f"'{directory}' is not a directory: give that of an exported form.")
    chosen, left_out = _choose(directory)
    if not any(name.endswith(_WEIGHTS) for name in chosen):
        raise UserError(f"'{directory}' holds no weights (.safetensors or .gguf): there is no model to upload.")
    content: dict[str, Path | bytes] = {}
    changed: list[str] = []
    for name in chosen:
        file = directory / name
        _refuse_secrets(file)
        new = _cleaned(file, base, changed) if file.suffix == ".json" and file.name not in _VOCABULARY else None
        content[name] = file if new is None else _json_bytes(new)
    return PushFiles(content, left_out, changed)


def base_named_in_run(directory: Path) -> str | None:
    """The Hub name by which the recipe of the run around `directory` called its base, or None."""
    try:
        recipe = read_json(directory.absolute().parent / "run.json").get("recipe")
        name = str(recipe.get("model_name_or_path"))
    except (OSError, ValueError, AttributeError):
        return None
    return name if is_hub_name(name) else None


def _choose(directory: Path) -> tuple[list[str], list[str]]:
    root = directory.resolve()
    chosen: list[str] = []
    left_out: list[str] = []
    for file in sorted(directory.rglob("*")):
        parts = file.relative_to(directory).parts
        name = "/".join(parts)
        half = next((part for part in parts if part.startswith(".") and part.endswith((".tmp", ".part"))), None)
        if half:
            raise UserError(
                f"'{directory}' holds '{half}', which is still being written: wait, or delete it if it is old."
            )
        hidden = any(part.startswith(".") for part in parts)
        stays = hidden or any(_OF_THE_RUN.search(part) for part in parts)
        if not stays and (reason := why_leads_out(root, file)):
            raise UserError(
                f"'{file}' {reason}: put the file itself there if it is to be uploaded, else delete the link."
            )
        if file.is_file():
            (left_out if stays else chosen).append(name)
    return chosen, left_out


def _refuse_secrets(file: Path) -> None:
    if file.suffix not in _TEXT or file.name in _VOCABULARY:
        return
    if holds_likely_secret(file.read_text(encoding="utf-8", errors="replace")):
        raise UserError(f"{file} holds what looks like an access token: take it out, and revoke it if it was shared.")


def _cleaned(file: Path, base: str | None, changed: list[str]) -> dict[str, Any] | None:
    """The JSON object to send in the place of `file`, or None if it can go as it is."""
    try:
        value = read_json(file)
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}): write the directory again.") from None
    if not isinstance(value, dict):
        return None
    if file.name == _MERGE_REPORT:
        changed.append(f"{file.name}: places of files")
        return scrubbed(value)
    local = [key for key in _NAME_KEYS if isinstance(value.get(key), str) and _is_local(value[key])]
    if not local:
        return None
    if _BASE_KEY in local and base is None:
        raise UserError(
            f"{file} names the base '{value[_BASE_KEY]}', a directory of this machine: give the base's Hub name "
            "(base=), so that others can load the adapter."
        )
    changed += [f"{file.name}: {key}" + (f" (now {base})" if key == _BASE_KEY else "") for key in local]
    kept = {key: item for key, item in value.items() if key not in local}
    return {**kept, _BASE_KEY: base} if _BASE_KEY in local else kept


def _is_local(name: str) -> bool:
    return last_part(name) != name or name.startswith(".") or Path(name).is_dir()


def _json_bytes(value: dict[str, Any]) -> bytes:
    return (json.dumps(json_safe(value), indent=2, ensure_ascii=False) + "\n").encode("utf-8")
