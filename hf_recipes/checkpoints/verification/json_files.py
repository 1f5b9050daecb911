"""The JSON files of a checkpoint: read once, bounded; what other checks need of them is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_recipes.checkpoints.verification.tokenizer_fit import TOKENIZER_FILES, largest_token_id
from hf_recipes.core.bounded_json import TooMuchJson, parse_json

MAX_JSON_BYTES = 100_000_000
_KEPT = ("config.json", "adapter_config.json", "run.json")


@dataclass(frozen=True)
class JsonFile:
    """What is wrong with a JSON file, why it was not parsed, and the part of its content that checks use."""

    damage: str | None = None
    note: str | None = None
    content: Any = None


def read_json_file(name: str, raw: bytes) -> JsonFile:
    """Parse a JSON file given its name and bytes (at most `MAX_JSON_BYTES`)."""
    try:
        value = parse_json(raw)
    except TooMuchJson as error:
        return JsonFile(note=f"{error}: not parsed")
    except RecursionError:
        return JsonFile("is nested too deeply to be read")
    except ValueError as error:  # it names line and column
        return JsonFile(f"is not JSON ({error})" if raw else "is empty")
    if name in TOKENIZER_FILES:
        return JsonFile(content=largest_token_id(name, value))
    return JsonFile(content=value if name in _KEPT or name.endswith(".index.json") else None)
