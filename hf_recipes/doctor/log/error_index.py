"""The page of known messages, made from the signatures: `python -m hf_recipes.doctor.log.error_index`."""

from __future__ import annotations

from collections.abc import Iterator

from hf_recipes.doctor.log.signature import Signature, fill
from hf_recipes.doctor.log.signatures import GROUPS, SIGNATURES

_KINDS = {
    "symptom": " Something else may lie behind it: `doctor` looks for that first.",
    "summary": " Only an account of what stands above it.",
    "notice": " No fault by itself.",
}


def render_index() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# What does this error mean?"
    yield ""
    yield (
        f"{len(SIGNATURES)} messages that training prints, whatever the tool, with cause and cure. "
        "`hf-recipes doctor FILE.log` finds them in a log, and which of them is the root ([how](doctor.md)). "
        "This page is made from the table that it uses; search it for words of your message."
    )
    for theme, group in GROUPS.items():
        yield ""
        yield f"## {theme}"
        for name, signature in group.items():
            yield from _entry(name, signature)


def _entry(name: str, signature: Signature) -> Iterator[str]:
    groups = signature.match(signature.example) or {}
    yield ""
    yield f"### {name}"
    yield ""
    yield "```text"
    yield signature.example.strip()
    yield "```"
    yield ""
    yield f"**Cause.** {_prose(fill(signature.cause, groups))}{_KINDS.get(signature.kind, '')}"
    yield ""
    yield f"**Cure.** {_prose(fill(signature.cure, groups))}."
    for phase, cure in signature.phase_cures.items():
        yield ""
        yield f"In the phase *{phase}*: {_prose(cure)}."
    yield ""
    yield f"Seen: {_place(signature.seen)}."


def _place(seen: str) -> str:
    return f"<{seen}>" if seen.startswith("https://") else _prose(seen)


def _prose(text: str) -> str:
    """Text that Markdown takes as text: names with underscores, stars and angle brackets are left as they are."""
    for character in "\\*_<>[]`":
        text = text.replace(character, f"\\{character}")
    return text


if __name__ == "__main__":
    print(render_index(), end="")
