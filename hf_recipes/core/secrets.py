"""Access tokens and keys by the forms that their makers gave them, so that they can be found and kept out of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "(not shown)"
# Long and mixed enough that no name of a model or directory looks like one.
_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}"  # Hugging Face
    r"|\bsk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{24,}"  # OpenAI, Anthropic
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{40,}|\bglpat-[\w-]{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\bAIza[\w-]{35}|\bxox[abprs]-[\w-]{10,}|\bwandb_v1_\w{20,}"
    r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"  # JWT (RFC 7519)
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"  # user and password in an address (RFC 3986, section 3.2.1)
)
_NAMES = re.compile(
    r"(^|[_.-])(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!per_)(token|password|passwd|secret|api_key|access_key|credentials?)$",
    re.IGNORECASE,
)
# What stands for a secret and is none: a variable that a shell fills in.
_REFERENCE = re.compile(r"^[\"']?\$")


def names_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret; ``eos_token`` and its like are tokens of another kind."""
    return bool(_NAMES.search(key))


def holds_secret(text: str) -> bool:
    """Whether a token or key of a known form stands in a text, or a password in an address."""
    return any(not _REFERENCE.match(match[0].rpartition(":")[2]) for match in _TOKEN.finditer(text))


def without_secrets(value: Any) -> Any:
    """Plain data with every token of a known form, and every text whose key names a secret, replaced."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if item and isinstance(item, str) and names_secret(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return _TOKEN.sub(HIDDEN, value) if isinstance(value, str) else value


def secret_places(value: Any, place: str = "") -> Iterator[str]:
    """Where in plain data a token or key of a known form stands, as dotted keys; never the secret itself."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from secret_places(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from secret_places(item, f"{place}.{index}".lstrip("."))
    elif isinstance(value, str) and holds_secret(value):
        yield place
