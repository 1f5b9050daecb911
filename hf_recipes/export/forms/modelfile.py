"""Ollama's Modelfile: where the model is, how its prompts are made, and at which tokens it stops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.files import write_text
from hf_recipes.export.forms.chat_pieces import ChatPieces, Message, take_apart

# More costs memory for the cache that few prompts need; the reader of the file can raise it to the model's limit.
MAX_CONTEXT = 8192
# generation_config.json → Modelfile (docs/modelfile.mdx of Ollama)
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "repetition_penalty": "repeat_penalty"}
_NO_TEMPLATE = (
    "The chat template is no plain row of turns, so that no Go template was written: Ollama will take the nearest of "
    "its own, or none; compare its prompts with the training's, or serve the GGUF by llama.cpp, which runs Jinja."
)


def write_modelfile(
    directory: Path, source: str, tokenizer: Any, *, adds_bos: bool, generation: dict[str, Any], context: int | None
) -> list[str]:
    """Write ``Modelfile`` into `directory`; returns notices worth telling.

    Args:
        source: what FROM names: ``./model.gguf`` or ``.``.
        tokenizer: with the chat template of the training.
        adds_bos: whether the runtime puts the BOS token before a prompt by itself (``tokenizer.ggml.add_bos_token``).
        generation: generation_config.json.
        context: positions the model has (``max_position_embeddings``), if known.
    """
    notices: list[str] = []
    pieces = None
    if tokenizer.chat_template is not None:
        bos = tokenizer.bos_token or ""
        pieces = take_apart(_render(tokenizer), bos if adds_bos else "")
        if pieces is None:
            notices.append(_NO_TEMPLATE)
        elif adds_bos and bos and not _render(tokenizer)([{"role": "user", "content": "x"}], True).startswith(bos):
            notices.append(f"llama.cpp and Ollama put {bos} before each prompt, which the chat template does not.")
    ends = end_tokens(tokenizer, generation)
    write_text(directory / "Modelfile", modelfile(source, pieces, ends, sampling(generation), context))
    return notices


def modelfile(
    source: str, pieces: ChatPieces | None, ends: Sequence[str], settings: dict[str, Any], context: int | None
) -> str:
    """The text of a Modelfile, from plain data."""
    lines = ["# ollama create NAME -f Modelfile", f"FROM {source}"]
    if pieces is not None:
        lines.append(f'TEMPLATE """{go_template(pieces)}"""')
    lines += [f"PARAMETER stop {_quoted(end)}" for end in ends]
    lines += [f"PARAMETER {key} {value}" for key, value in settings.items()]
    if context:
        lines.append(f"# The model has {context:,} positions; the cache for them takes memory.")
        lines.append(f"PARAMETER num_ctx {min(context, MAX_CONTEXT)}")
    return "\n".join(lines) + "\n"


def go_template(pieces: ChatPieces) -> str:
    """`pieces` as a Go template over ``.Messages``; a system message is one of them, and ``.System`` tells of it."""
    turns = {"system": pieces.system, "user": pieces.user, "assistant": pieces.assistant}
    branches = [
        f'if eq .Role "{role}" }}}}{_go(around[0])}{{{{ .Content }}}}{_go(around[1])}'
        for role, around in turns.items()
        if around is not None
    ]
    start = f"{{{{ if not .System }}}}{_go(pieces.start)}{{{{ end }}}}" if pieces.start else ""
    body = "{{ " + "{{ else ".join(branches) + "{{ end }}"
    return f"{start}{{{{ range .Messages }}}}{body}{{{{ end }}}}{_go(pieces.answer)}"


def end_tokens(tokenizer: Any, generation: dict[str, Any]) -> list[str]:
    """The texts of all tokens that end an answer: the generation config's and the tokenizer's."""
    configured = generation.get("eos_token_id")
    ids = configured if isinstance(configured, list) else [configured]
    known = [token for token in [*ids, tokenizer.eos_token_id] if token is not None]
    return list(dict.fromkeys(tokenizer.convert_ids_to_tokens(token) for token in known))


def sampling(generation: dict[str, Any]) -> dict[str, Any]:
    """The generation config's sampling settings under Ollama's names; greedy decoding is temperature 0."""
    if generation.get("do_sample") is False:
        return {"temperature": 0}
    return {ours: generation[key] for key, ours in _SAMPLING.items() if generation.get(key) is not None}


def _render(tokenizer: Any) -> Any:
    def render(messages: Sequence[Message], ask: bool) -> str:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask))

    return render


def _go(text: str) -> str:
    """Text that a Go template leaves as it is."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    """A value in a Modelfile: its parser takes off one pair of quotes and knows no escapes."""
    return f'"""{text}"""' if '"' in text else f'"{text}"'
