"""A tokenizer's chat template, asked what it does: how a turn ends, and whether it shows tools, calls and roles.

Everything is found by rendering probes; no table of known templates is kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.control_tokens import any_of, control_tokens, refuse_control_tokens, strings_in
from hf_recipes.data.masking.rendering import Rendered, Tools, render_all
from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message

PROBE = "hfRecipesProbe"
QUESTION: Message = {"role": "user", "content": "Hello"}
ANSWER: Message = {"role": "assistant", "content": PROBE}
CALL = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": {"value": 1}}}
RESULT: Message = {"role": "tool", "content": "{}", "name": PROBE, "tool_call_id": "call00000"}
TOOLS_HEAD = "You can call these functions, each described as JSON on a line of its own:"
TOOLS_TAIL = 'To call a function, answer with only a JSON object {"name": function name, "arguments": object}.'


@dataclass(frozen=True)
class EndOfTurn:
    """The token that ends an assistant turn, as the chat template writes it."""

    text: str
    token_id: int


def end_of_turn(tokenizer: Any) -> EndOfTurn:
    """The token the model must produce to end its turn; see `ChatTemplate.end_of_turn`."""
    return ChatTemplate(tokenizer).end_of_turn


class ChatTemplate:
    """Renders conversations with a tokenizer's own template and knows what the template supports.

    Raises:
        UserError: the tokenizer has no chat template, or one that fails on a plain exchange, does not show its answer
            as it is, or does not end it with a token.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise UserError(
                "The tokenizer has no chat template: use an instruct model's tokenizer, set tokenizer.chat_template, "
                "or give plain text (format: text)."
            )
        self.tokenizer = tokenizer
        self._told: set[str] = set()
        try:
            self.implied_ends = self._find_implied_ends()
        except BadRow as fault:
            raise UserError(f"The tokenizer's chat template fails on one question and answer: {fault}.") from fault
        _ = self.closing  # a template that cannot be trained on is refused before any row is read

    def _find_implied_ends(self) -> tuple[str, str]:
        """What ends an answer, and a function call, where the template itself writes nothing there (GLM-4).

        Such models stop by beginning the next turn: with ``<|user|>`` after an answer, ``<|observation|>`` after a
        call. The last turn of a conversation gets that token too, or the model would never learn to stop.
        """

        whole = render_all(self.tokenizer, [[QUESTION, ANSWER]], None)[0].text
        if whole.count(PROBE) != 1 or self.special_token.search(whole, whole.index(PROBE)):
            return "", ""
        called = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
        answer_end = self._next_turn([QUESTION, ANSWER], QUESTION)
        return answer_end, self._next_turn(called, RESULT) or answer_end

    def _next_turn(self, before: list[Message], message: Message) -> str:
        """The token that the template writes first for a message after others; not one that ends or begins a text."""
        try:
            (shorter,) = render_all(self.tokenizer, [before], None)
            (longer,) = render_all(self.tokenizer, [[*before, message]], None)
        except BadRow:
            return ""
        added = longer.text.removeprefix(shorter.text.rstrip())
        token = self.special_token.match(added.lstrip()) if added != longer.text else None
        return "" if token is None or token.group() in self._sequence_ends else token.group()

    @property
    def _sequence_ends(self) -> set[str]:
        return {token for token in (self.tokenizer.bos_token, self.tokenizer.eos_token) if token}

    def render(self, messages: list[Message], tools: Tools = None, *, add_generation_prompt: bool = False) -> str:
        """The conversation as text; raises `BadRow` with the template's own message where it refuses."""
        (rendered,) = self._render([messages], tools, add_generation_prompt=add_generation_prompt)
        return rendered.text

    def render_many(self, conversations: Sequence[tuple[list[Message], Tools]]) -> list[Rendered | BadRow]:
        """Conversations and their tools as text, with markers; a refused one is a `BadRow` in its place.

        Those without tools are rendered in one call, which is what makes it fast.
        """
        results: list[Rendered | BadRow | None] = [None] * len(conversations)
        plain = [index for index, (_, tools) in enumerate(conversations) if not tools]
        try:
            together = self._render([conversations[index][0] for index in plain], None, marked=self.has_markers)
            for index, rendered in zip(plain, together, strict=True):
                results[index] = rendered
        except BadRow:  # one of them; found out below
            pass
        return [
            result or self._render_one(messages, tools)
            for result, (messages, tools) in zip(results, conversations, strict=True)
        ]

    def _render_one(self, messages: list[Message], tools: Tools) -> Rendered | BadRow:
        try:
            return self._render([messages], tools, marked=self.has_markers)[0]
        except BadRow as fault:
            return fault

    def _render(self, conversations: list[list[Message]], tools: Tools, **options: bool) -> list[Rendered]:
        rendered = render_all(self.tokenizer, conversations, tools, **options)
        if not self.implied_ends[0] or options.get("add_generation_prompt"):
            return rendered
        return [self._end(messages[-1], result) for messages, result in zip(conversations, rendered, strict=True)]

    def _end(self, last: Message, rendered: Rendered) -> Rendered:
        end = self.implied_ends[bool(last.get("tool_calls"))] if last["role"] == "assistant" else ""
        return replace(rendered, text=rendered.text + end)

    @cached_property
    def has_markers(self) -> bool:
        """Whether the template marks what the assistant says with ``{% generation %}``."""
        return bool(re.search(r"\{%-?\s*generation\s*-?%\}", self.tokenizer.get_chat_template()))

    @cached_property
    def has_generation_prompt(self) -> bool:
        """Whether `add_generation_prompt` writes the head of an assistant turn."""
        return self.render([QUESTION], add_generation_prompt=True) != self.render([QUESTION])

    @cached_property
    def special_token(self) -> re.Pattern[str]:
        """Matches any added token of the tokenizer that is more than white space."""
        added = {token.content for token in self.tokenizer.added_tokens_decoder.values()}
        return any_of(text for text in added | set(self.tokenizer.all_special_tokens) if text.strip())

    def tokens_in(self, text: str) -> list[tuple[int, int]]:
        """The ranges of the `special_token` matches in a text."""
        return [match.span() for match in self.special_token.finditer(text)]

    @cached_property
    def control_token(self) -> re.Pattern[str]:
        """Matches the special tokens that the template writes, and BOS and EOS; see `control_tokens`."""
        system: Message = {"role": "system", "content": "Be brief."}
        turns = [QUESTION], [QUESTION, ANSWER], [system, QUESTION, ANSWER], [QUESTION, ANSWER, RESULT, ANSWER]
        written = [str(self.tokenizer.chat_template)]
        for messages in turns:
            for prompted in (False, True):
                with suppress(BadRow):
                    written.append(self.render(messages, add_generation_prompt=prompted))
        return any_of(control_tokens(self.tokenizer, "\n".join(written)))

    @cached_property
    def closing(self) -> str:
        """What follows an assistant's text up to and with the end-of-turn token, e.g. ``<|im_end|>`` or `` </s>``.

        It is the last special token that follows both in mid-conversation and at the end: Phi-3 writes
        ``<|end|>\\n<|endoftext|>`` only at the end, Cohere closes every turn with two tokens. Where the two ends have
        none in common (gpt-oss), the first special token at the end counts.

        Raises:
            UserError: the template writes none.
        """
        at_end = self._after_probe([QUESTION, ANSWER])
        try:
            within = self._after_probe([QUESTION, ANSWER, QUESTION])
            common = os.path.commonprefix([at_end, within])  # noqa: RUF071 (by character is what is wanted)
        except BadRow:  # a template for single exchanges
            common = at_end
        shared = list(self.special_token.finditer(common))
        last = shared[-1] if shared else self.special_token.search(at_end)
        if last is None:
            raise UserError(
                f"The chat template writes no special token after an assistant turn (but {at_end!r}), so the model "
                f"would never learn to stop: use a template that ends turns with one, such as {self._eos_text!r}."
            )
        if self.implied_ends[0]:
            self._tell(
                f"The chat template writes nothing after an answer: {self.implied_ends[0]!r}, which begins the next "
                "turn, is learned as its end (GLM-4 does so; else the template lacks its end-of-turn token)."
            )
        return at_end[: last.end()]

    @property
    def _eos_text(self) -> str:
        return self.tokenizer.eos_token or "</s>"

    @cached_property
    def end_of_turn(self) -> EndOfTurn:
        """The token at the end of `closing`; not always the tokenizer's ``eos_token``."""
        text = list(self.special_token.finditer(self.closing))[-1].group()
        return EndOfTurn(text, self.tokenizer.convert_tokens_to_ids(text))

    def _after_probe(self, messages: list[Message]) -> str:
        text = self.render(messages)
        if text.count(PROBE) != 1:
            raise UserError("The chat template does not show the assistant's text once, so it cannot be trained on.")
        return text.split(PROBE)[1]

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes out the `tools` it is given."""
        schema = {"name": PROBE, "description": PROBE, "parameters": {"type": "object", "properties": {}}}
        return self._shows([QUESTION], [{"type": "function", "function": schema}])

    @cached_property
    def shows_tool_calls(self) -> bool:
        """Whether the template writes out a message's ``tool_calls``."""
        return self._shows([QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}])

    def _shows(self, messages: list[Message], tools: Tools = None) -> bool:
        try:
            return PROBE in self.render(messages, tools)
        except BadRow:
            return False

    @cached_property
    def hidden_roles(self) -> frozenset[str]:
        """Roles whose turns the template passes over without a word (one it refuses aloud is not hidden)."""
        calls = {"tool_calls": [CALL]} if self.shows_tool_calls else {}
        tool = [QUESTION, {"role": "assistant", "content": "{}", **calls}, {**RESULT, "name": "f", "content": PROBE}]
        probes: dict[str, list[Message]] = {
            "system": [{"role": "system", "content": PROBE}, QUESTION],
            "tool": [*tool, {"role": "assistant", "content": "Done."}],
        }
        return frozenset(role for role, messages in probes.items() if self._hides(messages))

    def _hides(self, messages: list[Message]) -> bool:
        try:
            return PROBE not in self.render(messages)
        except BadRow:
            return False

    def fit(self, example: Example) -> tuple[list[Message], Tools, list[bool]]:
        """The example's messages, tools and trained flags in a form the template can show.

        Where the template ignores `tools`, their schemas go into the system turn as text (a system turn is put in front
        when there is none); where it ignores function calls, the turn's text is the call as JSON. Both are told once.

        Raises:
            BadRow: the template leaves out a role in silence, or a text holds one of its control tokens.
        """
        messages, tools, trained = example.messages, example.tools, example.trained
        if hidden := {message["role"] for message in messages} & self.hidden_roles:
            raise BadRow(f"the chat template leaves out {' and '.join(sorted(hidden))} turns")
        if not self.shows_tool_calls and any(message.get("tool_calls") for message in messages):
            self._tell("The chat template does not show function calls: they are written as JSON in the turn's text.")
            messages = [_call_as_text(message) for message in messages]
        if tools and not self.shows_tools:
            self._tell("The chat template does not show tools: their schemas are written into the system turn as text.")
            if messages[0]["role"] != "system":
                messages, trained = [{"role": "system", "content": ""}, *messages], [False, *trained]
            system = f"{messages[0]['content']}\n\n{tools_as_text(tools)}".strip()
            messages, tools = [{**messages[0], "content": system}, *messages[1:]], None
        refuse_control_tokens(strings_in([*messages, *(tools or ())]), self.control_token)
        return messages, tools, trained

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)


def tools_as_text(tools: list[dict[str, Any]]) -> str:
    """Tool schemas as a part of a system turn: one JSON line a function, then how to call one."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return "\n".join([TOOLS_HEAD, *lines, TOOLS_TAIL])


def _call_as_text(message: Message) -> Message:
    """The message with its function calls as JSON text: an object for one call, an array for several."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in message["tool_calls"]
    ]
    text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{message['content']}\n{text}" if message["content"].strip() else text}
