"""What a published text must not hold: secrets, and where on somebody's machine things lay."""

from __future__ import annotations

import re
from typing import Any

from hf_recipes.core.secrets import HIDDEN, names_secret, without_likely_secrets

# Two parts or more after a slash that no word, address or tag runs into: "/home/ann/x", not "tokens/s", "https://a/b",
# "</b>". The last part is what people know the thing by.
_POSIX_PATH = re.compile(r"(?<![\w:/.<>~)\]])~?/(?:[^\s/\"'`|<>()\[\],;:]+/)+(?P<last>[^\s/\"'`|<>()\[\],;:]*)")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:[\\/](?:[^\s\\/\"'`|<>]+[\\/])*(?P<last>[^\s\\/\"'`|<>]*)")
_SHARE_PATH = re.compile(r"\\\\[^\s\\]+(?:\\[^\s\\\"'`|<>]+)*\\(?P<last>[^\s\\\"'`|<>]*)")
_FILE_ADDRESS = re.compile(r"\bfile:/+(?:[^\s/\"'`|<>]+/)*(?P<last>[^\s/\"'`|<>]*)")


def scrub(text: str) -> str:
    """The text with absolute paths cut to their last part, and secrets and users in addresses taken out."""
    text = without_likely_secrets(text)
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
