"""Links out of a directory: in a model or checkpoint of a stranger they could lead to any file of this machine."""

from __future__ import annotations

import errno
from pathlib import Path


def why_leads_out(root: Path, path: Path) -> str | None:
    """Why a link in a directory is not followed; None for what is no link, or leads to a place inside it or to where a
    snapshot in the Hub's cache keeps its files.

    Args:
        root: the directory, resolved.
        path: of the entry.
    """
    if not path.is_symlink():
        return None
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError:
        return f"links to {path.readlink()}, which is not there"
    except (OSError, RuntimeError) as error:
        return f"is a link that leads nowhere ({getattr(error, 'strerror', None) or error})"
    if not any(target.is_relative_to(allowed) for allowed in (root, *_blobs(root))):
        return f"links out of the directory, to {target}"
    return None


def refuse_to_write(path: Path) -> None:
    """Raise `OSError` for a link out of its own directory: written through, a stranger's run would choose which of
    this machine's files is lost. Devices and pipes, and what lies in ``/dev`` (``/dev/stdout``), may be written."""
    place = path.parent.resolve()
    if path.is_symlink() and place not in (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd")):
        special = path.exists() and not path.is_file() and not path.is_dir()
        if not special and (reason := why_leads_out(place, path)):
            raise OSError(errno.ELOOP, f"{reason}; delete the link", str(path))


def _blobs(root: Path) -> list[Path]:
    """Where the links of a snapshot in the Hub's cache lead: ``models--X/snapshots/REV`` to ``models--X/blobs``."""
    return [parent.parent / "blobs" for parent in root.parents if parent.name == "snapshots"]
