"""What other forms are made from, made once: the merged model, and its GGUF in 16 bits."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hf_recipes.export.forms.llama_cpp import LlamaCpp


@dataclass
class Sources:
    """`merged` gives the merged model, made on the first call if no form of that kind was asked for and written.

    Args:
        place: a directory of its own, removed in the end.
        make_merged: ``(output) -> None``: writes the merged model, in `dtype`.
        dtype: ``bf16`` or ``fp16``: the 16 bits that keep the base's values.
        written: merged forms that were asked for, by the same names.
    """

    place: Path
    make_merged: Callable[[Path], None]
    tools: LlamaCpp
    name: str
    dtype: str = "bf16"
    written: dict[str, Path] = field(default_factory=dict)
    _error: BaseException | None = None

    def merged(self) -> Path:
        """A merged model: a written form, if it can be in `dtype`, else one made here. What failed once fails again at
        once."""
        return self.written[self.merged_dtype] if self.written else self._made()

    @property
    def merged_dtype(self) -> str:
        """The dtype of what `merged` gives."""
        return self.dtype if not self.written or self.dtype in self.written else next(iter(self.written))

    def _made(self) -> Path:
        output = self.place / f"merged-{self.dtype}"
        if self._error is not None:
            raise self._error
        if not output.is_dir():
            try:
                self.make_merged(output)
            except Exception as error:  # raised again for every form that needs it, without hours of merging anew
                self._error = error
                raise
        return output

    def sixteen_bit_gguf(self) -> Path:
        """The merged model as GGUF in 16 bits."""
        file = self.place / "16bit.gguf"
        if not file.is_file():
            self.place.mkdir(parents=True, exist_ok=True)
            half = self.place / "16bit.part.gguf"
            self.tools.convert(self.merged(), half, "f16" if self.merged_dtype == "fp16" else "bf16", self.name)
            half.rename(file)
        return file


@contextmanager
def temporary_place(output: Path) -> Iterator[Path]:
    """A hidden directory beside the forms, removed in the end; those that killed exports left are removed first."""
    output.mkdir(parents=True, exist_ok=True)
    for left in output.glob(f".sources.{platform.node()}.*.tmp"):
        if not _runs(left.name.split(".")[-2]):
            shutil.rmtree(left, ignore_errors=True)
    place = output / f".sources.{platform.node()}.{os.getpid()}.tmp"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
