"""Takes out of a diagnosis what an issue must not hold: the home, the user's and the machine's name, secrets."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_recipes.core.secrets import without_likely_secrets
from hf_recipes.doctor.findings import Finding

# Secrets that only what stands before them gives away: variables and flags, headers, signed addresses, old W&B keys.
_NAMED = re.compile(
    r"(\b[A-Z0-9_]*(?:TOKEN|API_KEY|SECRET|SECRET_KEY|ACCESS_KEY|PASSWORD|PASSWD)['\"]?\s*[=:]\s*['\"]?"
    r"|\b(?:hub_token|api[_-]key|password|passwd|secret|access[_-]token)['\"]?\s*[=:]\s*['\"]?"
    r"|\b(?:[Bb]earer|[Ww]andb login)\s+"
    r"|[?&](?:X-Amz-\w+(?:-\w+)*|Signature|Policy|Key-Pair-Id|sig|token)=)"
    r"(?!None\b|True\b|False\b)[^\s'\"&,;)}\]]+"
)
# Cut shorter than any name would be taken for one elsewhere: a diagnosis goes to strangers, and needs no such names.
_SHORT_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}|\bapi_org_[A-Za-z0-9]{8,}")
_OTHERS_HOME = re.compile(r"((?:^|(?<=[\s'\"(=:]))/(?:home|Users)/)[^/\s'\":]+")
_PLAIN_NAMES = frozenset({"root", "user", "ubuntu", "localhost", "admin", "test", "runner"})


def without_names(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, fit to be shown to anybody."""
    hide = Hider.of_this_machine()
    return [replace(one, sentence=hide(one.sentence), cure=hide(one.cure)) for one in findings]


class Hider:
    """Replaces the home by ``~``, names by ``USER`` and ``HOST``, secrets by nothing."""

    def __init__(self, home: str, user: str, host: str) -> None:
        self._home = home if len(home) > 1 else ""
        self._names = [
            (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), shown)
            for name, shown in ((user, "USER"), (host, "HOST"))
            if len(name) > 2 and name not in _PLAIN_NAMES
        ]

    @classmethod
    def of_this_machine(cls) -> Hider:
        """By this process's home, user and host."""
        user = ""
        with suppress(Exception):  # a container's user may have no name
            user = getpass.getuser()
        return cls(str(Path.home()), user, socket.gethostname())

    def __call__(self, text: str) -> str:
        if self._home:
            text = re.sub(rf"{re.escape(self._home)}(?=/|\W|$)", "~", text)
        for pattern, shown in self._names:
            text = pattern.sub(shown, text)
        return _OTHERS_HOME.sub(r"\1USER", _NAMED.sub(r"\1", _SHORT_TOKEN.sub("", without_likely_secrets(text, ""))))

    def within(self, value: Any) -> Any:
        """Plain data with every text in it, and every name of one, fit to be shown."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(key)): self.within(item) for key, item in value.items()}
        return [self.within(item) for item in value] if isinstance(value, (list, tuple)) else value
