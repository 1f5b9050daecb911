"""The tokenizer, checked for what later steps rely on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.models.source import find_model, one_sentence, tell_trusted_code

# Not <|image_pad|> and its like, which stand for something.
_PAD_NAME = re.compile(r"\W*(finetune_)?(right_|left_)?pad(ding)?(_id|_token)?\W*", re.IGNORECASE)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(
    name_or_path: str,
    *,
    revision: str | None = None,
    chat_template_path: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that has a pad token.

    A missing one becomes the vocabulary's own token for it (Llama 3's ``<|finetune_right_pad_id|>``), else the eos
    token: padding is masked by position, so no token is added.

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
    if trust_remote_code:
        tell_trusted_code(source)
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
        tokenizer.pad_token = _unused_pad_token(tokenizer) or tokenizer.eos_token
        logger.info("No pad token set: padding with %r (masked by position).", tokenizer.pad_token)
    if chat_template_path is not None:
        template = Path(chat_template_path)
        if not template.is_file():
            raise UserError(f"chat_template_path: '{chat_template_path}' is not a file: give a Jinja template.")
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def _unused_pad_token(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A special token of the vocabulary that says it is for padding of text."""
    tokens = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return next((token for token in tokens if _PAD_NAME.fullmatch(token)), None)


def load_recipe_tokenizer(values: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """`load_tokenizer` by a recipe's keys: the model's, its revision, and the chat template that replaces its own."""
    return load_tokenizer(
        values["model_name_or_path"],
        revision=values.get("model_revision"),
        chat_template_path=values.get("chat_template_path"),
        trust_remote_code=bool(values.get("trust_remote_code")),
    )
