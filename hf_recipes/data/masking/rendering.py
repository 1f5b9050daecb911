"""Conversations → text by a tokenizer's own chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import first_line
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.turns import Message

Tools = list[dict[str, Any]] | None


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and the character ranges inside the template's ``{% generation %}`` markers, if any."""

    text: str
    marked: list[tuple[int, int]] = field(default_factory=list)


def render_all(
    tokenizer: Any,
    conversations: list[list[Message]],
    tools: Tools,
    *,
    add_generation_prompt: bool = False,
    marked: bool = False,
) -> list[Rendered]:
    """Render conversations that share their tools, as ``apply_chat_template`` does; `marked` finds the markers too.

    Raises:
        BadRow: the template refuses one of them; the reason is the template's own message.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, spans = render_jinja_template(
            conversations,
            tools=tools,
            chat_template=tokenizer.get_chat_template(None, tools),
            return_assistant_tokens_mask=marked,
            add_generation_prompt=add_generation_prompt,
            **tokenizer.special_tokens_map,
        )
    except Exception as error:  # templates are programs of their own: any kind of error may come out
        raise BadRow(f"the chat template refuses the row: {first_line(error)}") from error
    if not marked:
        return [Rendered(text) for text in texts]
    return [Rendered(text, [tuple(span) for span in ranges]) for text, ranges in zip(texts, spans, strict=True)]
