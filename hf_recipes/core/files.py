"""Files that are whole or absent: written beside their place, synced, renamed; and one way to hash them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from hf_recipes.core.links import refuse_to_write

_READ_BYTES = 2 * 1024 * 1024


def fsync_directory(path: Path) -> None:
    """Make renames inside `path` durable. Directories cannot be opened on Windows, where renames are durable anyway."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expanded(name: str | Path) -> Path:
    """The path with its ``~`` replaced; as it is where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def staged_beside(path: Path, ending: str = "tmp") -> Path:
    """A hidden name beside `path` that no other writer takes, to be renamed to it. Process ids would not do: they are
    the same in two containers that share a directory."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.{ending}")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader, or a machine that loses power, sees the old file or the new one, never half.

    A link stays a link, and its target is written, unless it leads out of its directory; a device or pipe, which cannot
    be replaced, is written to.

    Raises:
        OSError: it names `path`, which also may be a link out of its directory; nothing half-written is left, which on
            a full disk would take the room of others.
    """
    refuse_to_write(path)
    path = path.resolve() if path.is_symlink() else path
    staged = staged_beside(path)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(staged, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    fsync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as strict JSON (see `json_safe`), whole or not at all."""
    write_text(path, json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a UTF-8 JSON file; raises `FileNotFoundError`, `OSError` for what is no file, or `ValueError` for what is no
    JSON, too deeply nested included."""
    refuse_special(path)
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def refuse_special(path: Path) -> None:
    """Raise `OSError` for a pipe, socket or device, which a reader could wait for without end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def json_safe(value: Any) -> Any:
    """Turn non-finite floats into the strings ``"nan"``, ``"inf"``, ``"-inf"``, and paths and odd objects into text.

    Python writes bare ``NaN``, which browsers and most JSON readers refuse.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [json_safe(item) for item in items]
    if isinstance(value, str):
        # Half a surrogate pair, which JSON data may hold as "\\ud83d", has no UTF-8 form and would stop the writing.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, (bool, int)):
        return value
    if hasattr(value, "item") and getattr(value, "size", None) == 1:  # numpy scalars
        return json_safe(value.item())
    return str(value)


def short_digest(text: str) -> str:
    """16 hex digits (64 bits) of the SHA-256 of a text, to tell contents apart where nobody tries to make two alike."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sha256_of_file(path: Path) -> str:
    """Return the hex SHA-256 of a file, read once through a fixed buffer."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
