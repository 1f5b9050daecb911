"""How assistant turns end, as the account of the data tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_recipes.core.log import logger
from hf_recipes.data.masking.masks import Encoder


def end_of_turn_facts(encoder: Encoder, formats: Sequence[str]) -> dict[str, Any] | None:
    """How assistant turns end, for ``data.json``; None without conversations. Tells when it is not the eos."""
    if all(name == "text" for name in formats):
        return None
    end, tokenizer = encoder.template.end_of_turn, encoder.tokenizer
    is_eos = end.token_id == tokenizer.eos_token_id
    if not is_eos:
        logger.info(
            "Assistant turns end with %r (token %d), not the eos_token %r: generation must stop at it.",
            end.text,
            end.token_id,
            tokenizer.eos_token,
        )
    return {"text": end.text, "token_id": end.token_id, "is_eos": is_eos}
