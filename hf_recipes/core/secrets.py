"""Access tokens and keys by the forms that their makers gave them, so that they can be found and kept out of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "(not shown)"
# The forms of single services: how a token begins, what follows, and how much of that makes one certain (nothing else
# looks like it, so a recipe that holds one is refused) or likely (better hidden in what others will read).
_FORMS = (
    (r"\b(?:hf_|api_org_)", r"[A-Za-z0-9]", 30, 16),  # Hugging Face
    (r"\bsk-(?=[\w-]*\d)(?=[\w-]*[A-Z])", r"[\w-]", 24, 24),  # OpenAI, Anthropic
    (r"\bsk-", r"[\w-]", None, 16),
    (r"\bgh[pousr]_", r"[A-Za-z0-9]", 36, 20),
    (r"\bgithub_pat_", r"\w", 40, 20),
    (r"\bglpat-", r"[\w-]", 20, 16),
    (r"\b(?:AKIA|ASIA)", r"[A-Z0-9]", 16, 12),  # AWS
    (r"\bAIza", r"[\w-]", 35, 30),  # Google
    (r"\bxox[abprs]-", r"[\w-]", 10, 10),  # Slack
    (r"\bwandb_v1_", r"\w", 20, 8),
)
# JWT (RFC 7519); keys in PEM (RFC 7468); user and password in an address (RFC 3986, section 3.2.1).
_KEY = r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
_CERTAIN = re.compile(
    "|".join(f"{start}{of}{{{certain},}}" for start, of, certain, _ in _FORMS if certain)
    + r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    + _KEY
)
_LIKELY = re.compile(
    "|".join(f"{start}{of}{{{likely},}}" for start, of, _, likely in _FORMS) + r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*" + _KEY
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@]+@")
_NAMES = re.compile(
    r"(^|[_.-])(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!per_)"
    r"(token|hftoken|password|passwd|secret|api_?key|access_key|credentials?|webhook(_url)?)$",
    re.IGNORECASE,
)
# What stands for a secret and is none: a variable that a shell fills in.
_REFERENCE = re.compile(r"^[\"']?\$")


def names_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret; ``eos_token`` and its like are tokens of another kind."""
    return bool(_NAMES.search(key))


def holds_secret(text: str) -> bool:
    """Whether a token or key of a known form stands in a text, or a password in an address."""
    return any(not _REFERENCE.match(match[0].rpartition(":")[2]) for match in _CERTAIN.finditer(text))


def holds_likely_secret(text: str) -> bool:
    """As `holds_secret`, for what is to be published: what is cut short or unusual counts too."""
    return _LIKELY.search(text) is not None


def without_likely_secrets(text: str, shown: str = HIDDEN) -> str:
    """A text for others' eyes: what may be a token is replaced by `shown`, users in addresses are left out."""
    return _USER_IN_ADDRESS.sub("", _LIKELY.sub(shown, text))


def without_secrets(value: Any) -> Any:
    """Plain data with every token of a known form, and every text whose key names a secret, replaced."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if item and isinstance(item, str) and names_secret(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return _CERTAIN.sub(HIDDEN, value) if isinstance(value, str) else value


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
