"""A page that follows runs while they train, served to this machine alone."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import short_digest
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.page import Content, assemble, content
from hf_recipes.report.read_run import RunReader
from hf_recipes.report.verdict import verdict

HOST = "127.0.0.1"
DEFAULT_PORT = 8765
_NAMES = (HOST, "localhost")


class Follower:
    """The newest state of some runs, read anew at each question; of the event logs only what was added."""

    def __init__(self, runs: Sequence[RunDirectory]) -> None:
        self._readers = [RunReader(run) for run in runs]
        self._lock = threading.Lock()
        self._running = True

    def now(self, known: str | None = None) -> tuple[str, Content | None]:
        """The version, and the content unless it is the version `known`."""
        with self._lock:
            version = self._version()
            if version == known:
                return version, None
            records = [reader.read() for reader in self._readers]
            self._running = any(verdict(record).running for record in records)
            return version, content(records)

    def _version(self) -> str:
        """Changes with every file that the page shows; while a run has not ended also each minute: it may be silent."""
        seen: list[Any] = [time.time() // 60] if self._running else []
        for reader in self._readers:
            path = reader.run.path
            files = [*path.glob("*.json"), *path.glob("*.jsonl"), *path.glob("checkpoint-*"), *path.glob("*/*ed.json")]
            for file in sorted({*files, *path.glob("*/manifest.json")}):
                try:
                    found = file.stat()
                except OSError:  # rotated away meanwhile
                    continue
                seen.append((str(file), found.st_mtime_ns, found.st_size))
        return short_digest(repr(seen))


def make_server(runs: Sequence[RunDirectory], port: int = DEFAULT_PORT) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that is ready to ``serve_forever``; port 0 takes a free one.

    Raises:
        UserError: the port is in use, or not ours to take.
    """
    follower = Follower(runs)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A foreign page may have its own name point to 127.0.0.1, to read what is served here.
            if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
                return self._answer(403, "text/plain", "Ask for 127.0.0.1 or localhost.\n")
            asked = urlsplit(self.path)
            if asked.path == "/":
                version, shown = follower.now()
                assert shown is not None
                return self._answer(200, "text/html", assemble(shown, version))
            if asked.path == "/data.json":
                version, shown = follower.now(parse_qs(asked.query).get("version", [None])[0])
                return self._answer(204, "application/json", "") if shown is None else self._news(version, shown)
            return self._answer(404, "text/plain", "Nothing is here.\n")

        def _news(self, version: str, shown: Content) -> None:
            news = {"head": shown.head, "rest": shown.rest, "data": {**shown.data, "version": version}}
            self._answer(200, "application/json", json.dumps(news, allow_nan=False))

        def _answer(self, code: int, kind: str, body: str) -> None:
            sent = body.encode("utf-8")
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(sent)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing: a page that asks each two seconds would fill the terminal."""

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the browser left while it was answered
                self.close_connection = True

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OverflowError:
        raise UserError(f"--serve {port}: a port is a number from 0 to 65535.") from None
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UserError(f"--serve {port}: port {port} {why}: give another, or 0 for any that is free.") from None
