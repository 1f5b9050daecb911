"""Whether ranks could find each other here, and what stands between this machine and the Hub. Asks nobody outside."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from hf_recipes.core.files import expanded
from hf_recipes.doctor.environment.facts import Reach

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_LOCAL = {"localhost", "127.0.0.1", "::1", "*"}
_PATIENCE_SECONDS = 1.0
RENDEZVOUS_PORT = 29500


def look_at_reach() -> Reach:
    """Try the loopback and this machine's name; read the variables."""
    proxies = tuple(name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.upper()))
    spared = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    return Reach(
        loopback=_loopback_talks(),
        own_name=_has_address(socket.gethostname()),
        proxies=proxies,
        no_proxy=not proxies or bool(_LOCAL & set(spared)),
        offline=any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE),
        token=_has_token(),
        port_free=_is_free(RENDEZVOUS_PORT),
    )


def _loopback_talks() -> bool:
    with suppress(OSError), socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname(), timeout=_PATIENCE_SECONDS) as sending:
            listening.settimeout(_PATIENCE_SECONDS)
            taking, _ = listening.accept()
            with taking:
                taking.settimeout(_PATIENCE_SECONDS)
                sending.sendall(b"1")
                return taking.recv(1) == b"1"
    return False


def _has_address(name: str) -> bool:
    with suppress(OSError, UnicodeError):
        return bool(socket.getaddrinfo(name, None))
    return False


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("0.0.0.0", port))
        return True
    return False


def _has_token() -> bool:
    file = os.environ.get("HF_TOKEN_PATH") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "token"
    return any(os.environ.get(name) for name in _TOKENS) or expanded(file).is_file()
