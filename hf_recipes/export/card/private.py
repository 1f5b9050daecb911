"""What a published text must not hold: secrets, and where on somebody's machine things lay."""

from __future__ import annotations

import re
from typing import Any

from hf_recipes.core.secrets import HIDDEN, names_secret

# Tokens of services that people train with, by the form their makers gave them so that they can be found.
SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\bAIza[A-Za-z0-9_-]{35}"  # Google
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
# Two parts or more after a slash that no word, address or tag runs into: "/home/ann/x", not "tokens/s", "https://a/b",
# "</b>". The last part is what people know the thing by.
_POSIX_PATH = re.compile(r"(?<![\w:/.<>~)\]])~?/(?:[^\s/\"'`|<>()\[\],;:]+/)+(?P<last>[^\s/\"'`|<>()\[\],;:]*)")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:[\\/](?:[^\s\\/\"'`|<>]+[\\/])*(?P<last>[^\s\\/\"'`|<>]*)")
_SHARE_PATH = re.compile(r"\\\\[^\s\\]+(?:\\[^\s\\\"'`|<>]+)*\\(?P<last>[^\s\\\"'`|<>]*)")
_FILE_ADDRESS = re.compile(r"\bfile:/+(?:[^\s/\"'`|<>]+/)*(?P<last>[^\s/\"'`|<>]*)")
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@]+@")


def scrub(text: str) -> str:
    """The text with absolute paths cut to their last part, and secrets and users in addresses taken out."""
    text = SECRET.sub(HIDDEN, text)
    text = _USER_IN_ADDRESS.sub("", text)
    for pattern in (_FILE_ADDRESS, _SHARE_PATH, _WINDOWS_PATH, _POSIX_PATH):
        text = pattern.sub(lambda match: match["last"] or "…", text)
    return text


def scrubbed(value: Any) -> Any:
    """As `scrub`, for plain data; what a key's name calls a secret is hidden whatever it looks like.

    Whole strings that are paths are cut even where they hold blanks.
    """
    if isinstance(value, dict):
        return {
            scrub(str(key)): HIDDEN if item and names_secret(str(key)) else scrubbed(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    if isinstance(value, str):
        return scrub(last_part(value))
    return value


def last_part(text: str) -> str:
    """The last part of a string that is an absolute path as a whole, else the string."""
    whole = text.strip()
    if "\n" not in whole and re.match(r"^(/|~|[A-Za-z]:[\\/]|\\\\|file://)", whole):
        return re.split(r"[\\/]", whole.rstrip("\\/"))[-1] or "…"
    return text


def has_secret(text: str) -> bool:
    """Whether a token of a known form stands in the text."""
    return SECRET.search(text) is not None
