"""A directory to serve, read by its headers and JSON files; no weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.tensors import DamagedFile, TensorEntry, read_header, tensor_files

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
TEMPLATE_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class Served:
    """What a model's or an adapter's directory says. A file that is not there is an empty dict.

    `damage` names weight files that are missing or cut.
    """

    directory: Path
    config: dict[str, Any]
    adapter_config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer_config: dict[str, Any]
    tokens: dict[str, int]
    template: str | None
    tensors: dict[str, TensorEntry]
    damage: list[str] = field(default_factory=list)

    @property
    def text_config(self) -> dict[str, Any]:
        """The config of the language model, for composite models that nest it."""
        nested = self.config.get("text_config")
        return {**self.config, **nested} if isinstance(nested, dict) else self.config

    @property
    def architecture(self) -> str | None:
        """The first of ``architectures``."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def has_tokenizer(self) -> bool:
        return any((self.directory / name).is_file() for name in TOKENIZER_FILES)

    @property
    def end_token(self) -> tuple[str, int] | None:
        """The tokenizer's end token and its id, as far as its files tell."""
        text = _content(self.tokenizer_config.get("eos_token"))
        return (text, self.tokens[text]) if text in self.tokens else None


def read_served(directory: Path) -> Served:
    """Read a directory.

    Raises:
        UserError: it is not there, or a JSON file of it is damaged.
    """
    if not directory.is_dir():
        raise UserError(f"'{directory}' is not a directory: give that of a merged model or of an adapter.")
    tensors, damage = _headers(directory)
    settings = _object(directory / "tokenizer_config.json")
    return Served(
        directory,
        _object(directory / "config.json"),
        _object(directory / "adapter_config.json"),
        _object(directory / "generation_config.json"),
        settings,
        _tokens(directory, settings),
        _template(directory, settings),
        tensors,
        damage,
    )


def _object(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): write the directory again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{file} is not a JSON object: write the directory again.")
    return value


def _headers(directory: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    tensors: dict[str, TensorEntry] = {}
    damage = []
    try:
        files = tensor_files(directory)
    except ValueError as error:  # damaged, or naming files elsewhere
        return {}, [f"the index of the weights cannot be used ({error})"]
    for file in files:
        try:
            tensors |= read_header(file)[0]
        except FileNotFoundError:
            damage.append(f"{file.name} is missing")
        except DamagedFile as error:
            damage.append(str(error))
    return tensors, damage


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _tokens(directory: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Added tokens (all special ones are) and the vocabulary, by text."""
    whole = _object(directory / "tokenizer.json")
    model = whole.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    try:
        tokens = {text: int(id) for text, id in vocabulary.items()} if isinstance(vocabulary, dict) else {}
        tokens |= {str(entry["content"]): int(entry["id"]) for entry in whole.get("added_tokens") or ()}
        decoder = settings.get("added_tokens_decoder") or {}
        return tokens | {text: int(key) for key, entry in decoder.items() if (text := _content(entry))}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"The tokens in '{directory}' (tokenizer.json, tokenizer_config.json) are not texts with their ids: write "
            "the directory again."
        ) from None


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    file = directory / TEMPLATE_NAME
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = settings.get("chat_template")
    if isinstance(given, list):
        templates = [entry for entry in given if isinstance(entry, dict)]
        given = next((entry.get("template") for entry in templates if entry.get("name") == "default"), None)
    return given if isinstance(given, str) else None
