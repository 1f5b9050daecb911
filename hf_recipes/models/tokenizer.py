"""The tokenizer, checked for what later steps rely on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.models.source import find_model, one_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(
    name_or_path: str,
    *,
    revision: str | None = None,
    chat_template_path: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer; a missing pad token becomes the eos token (padding is masked by position, no token is added).

    Args:
        name_or_path: Directory, ``.gguf`` file or Hub name.
        revision: Hub revision.
        chat_template_path: A Jinja file that replaces the tokenizer's chat template.
        trust_remote_code: Whether code shipped with the model may run.

    Raises:
        UserError: it cannot be found or loaded, it has no fast version, or there is neither pad nor eos token.
    """
    from transformers import AutoTokenizer

    source = find_model(name_or_path, revision)
    with one_sentence(source):
        tokenizer = AutoTokenizer.from_pretrained(
            source.name_or_path, trust_remote_code=trust_remote_code, **source.load_arguments()
        )
    if not tokenizer.is_fast:
        raise UserError(f"The tokenizer of '{name_or_path}' has no fast version: masks need its character offsets.")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise UserError(
                f"The tokenizer of '{name_or_path}' has neither a pad nor an eos token: set one in its files."
            )
        tokenizer.pad_token = tokenizer.eos_token
        logger.info("No pad token: padding with the eos token %r (masked by position).", tokenizer.eos_token)
    if chat_template_path is not None:
        template = Path(chat_template_path)
        if not template.is_file():
            raise UserError(f"chat_template_path: '{chat_template_path}' is not a file: give a Jinja template.")
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def load_recipe_tokenizer(values: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """`load_tokenizer` by a recipe's keys: the model's, its revision, and the chat template that replaces its own."""
    return load_tokenizer(
        values["model_name_or_path"],
        revision=values.get("model_revision"),
        chat_template_path=values.get("chat_template_path"),
        trust_remote_code=bool(values.get("trust_remote_code")),
    )
