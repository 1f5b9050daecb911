"""An output directory that is there whole or not at all: filled beside its place, synced, renamed."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import fsync_directory
from hf_recipes.core.log import logger

_OF_A_MODEL = ("config.json", "adapter_config.json")
_WEIGHTS = (".safetensors", ".gguf", ".index.json")


def check_output(output: Path, overwrite: bool, *inputs: Path) -> None:
    """Raise `UserError` when `output` is there already (and `overwrite` is not given), or is, holds or is inside an
    input, which overwriting would destroy."""
    place = output.resolve()
    for source in (path.resolve() for path in inputs):
        if place == source or place in source.parents:
            raise UserError(f"The output '{output}' is or holds '{source}', which is read: name another directory.")
    if output.exists() and not overwrite:
        raise UserError(f"The output '{output}' exists: name another, or give --overwrite to replace it.")
    if output.exists() and not output.is_dir():
        raise UserError(f"The output '{output}' is a file: name a directory.")
    if output.exists() and any(output.iterdir()) and not _holds_a_model(output):
        raise UserError(f"The output '{output}' holds no model that --overwrite could replace: name another directory.")


def _holds_a_model(directory: Path) -> bool:
    names = [entry.name for entry in directory.iterdir()]
    return any(name in _OF_A_MODEL or name.endswith(_WEIGHTS) for name in names)


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty directory beside `output`; when the block ends well it is synced and takes `output`'s name.

    An `output` that exists is replaced only then; one that another process made meanwhile is not. On an error the
    directory is removed; a kill leaves it under its hidden name, which no tool takes for a model, and the next merge to
    the same place removes it.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _clean_leftovers(output)
    existed = output.exists()
    staging = _beside(output, "tmp")
    staging.mkdir()
    try:
        yield staging
        _sync(staging)
        if output.exists() and not existed:
            raise UserError(
                f"The output '{output}' was made by another process meanwhile: it stays, and this one ends."
            )
        _take_place(staging, output)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


@contextmanager
def synced_meanwhile(directory: Path) -> Iterator[None]:
    """Sync the files of `directory` to disk while the block runs; its errors go before those of the disk."""
    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(_sync, directory)
        yield
    syncing.result()


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(f".{output.name}.{platform.node()}.{os.getpid()}.{ending}")


def _clean_leftovers(output: Path) -> None:
    """Remove what killed merges left; put back an old output that was on its way out when its merge was killed."""
    pattern = re.compile(rf"\.{re.escape(output.name)}\.(?P<host>.*)\.(?P<pid>\d+)\.(?P<ending>tmp|old)")
    for path in list(output.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        if match["host"] != platform.node() or _is_running(int(match["pid"])):
            logger.warning("%s belongs to another merge to the same place; if none runs, delete it.", path)
        elif match["ending"] == "old" and not output.exists():
            path.rename(output)
            logger.warning("%s was put back: the merge that should have replaced it was killed.", output)
        else:
            shutil.rmtree(path)
            logger.info("Removed %s, left by a merge that was killed.", path)


def _is_running(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(directory: Path) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    fsync_directory(directory)


def _take_place(staging: Path, output: Path) -> None:
    old = _beside(output, "old")
    try:
        if output.exists():
            output.rename(old)
        staging.rename(output)
    except BaseException:
        if old.exists() and not output.exists():
            old.rename(output)
        raise
    fsync_directory(output.parent)
    shutil.rmtree(old, ignore_errors=True)
