"""A GGUF file as a base: dequantised into a safetensors directory that lives as long as the merge."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from hf_recipes.core.dtypes import SHORT_NAMES
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_SPARE_BYTES = 64 * 1024**2  # tokenizer, config, file system overhead


def trained_dtype(run: Mapping[str, Any]) -> str:
    """The dtype a run held its base in, by run.json; without a record ``float32``, which rounds nothing."""
    dtype = (run.get("precision") or {}).get("dtype")
    return dtype if dtype in _BYTES else "float32"


@contextmanager
def opened_base(base: Path, *, dtype: str, scratch: Path, tokenizer: bool = True) -> Iterator[Path]:
    """Yield a directory with the base's safetensors: `base` itself, or for a ``.gguf`` file a temporary one.

    The file is dequantised by transformers, as training does it, with the whole model in memory; the directory is
    removed when the block ends.

    Args:
        base: from `find_base`.
        dtype: ``bfloat16``, ``float16`` or ``float32``: what a GGUF file is dequantised to.
        scratch: a directory, made if need be, on the disk that has to hold the values; removed again if it was made
            and is empty.
        tokenizer: also save the file's tokenizer, which takes time.

    Raises:
        UserError: the file cannot be read, is of an architecture transformers does not know, or the disk is too full.
    """
    if base.is_dir():
        yield base
        return
    needed = _elements(base) * _BYTES[dtype]
    made = not scratch.exists()
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        free = shutil.disk_usage(scratch).free
        if free < needed + _SPARE_BYTES:
            raise UserError(
                f"Dequantised, '{base}' needs {needed / 1e9:.2f} GB, but {scratch} has {free / 1e9:.2f} GB free: make "
                "room, or name an output on another disk."
            )
        with tempfile.TemporaryDirectory(dir=scratch, prefix=f".{base.stem}.") as place:
            directory = Path(place) / base.stem
            started = time.perf_counter()
            _dequantise(base, directory, dtype, tokenizer)
            logger.info(
                "The base %s was dequantised to %s for this merge: %.2f GB, %.1f s.",
                base.name,
                SHORT_NAMES[dtype],
                needed / 1e9,
                time.perf_counter() - started,
            )
            yield directory
    finally:
        if made and not any(scratch.iterdir()):
            scratch.rmdir()


def _elements(file: Path) -> int:
    """The number of weights, by the header alone."""
    try:
        from transformers.integrations.gguf.reader import GgufHeader
    except ImportError:
        raise UserError("A GGUF base needs the package gguf: run `pip install gguf`.") from None
    try:
        return sum(prod(tensor.shape) for tensor in GgufHeader.from_file(str(file)).tensors)
    except Exception as error:  # a damaged header raises whatever the field that is read last raises
        raise UserError(f"'{file}' cannot be read as GGUF ({_brief(error)}): fetch it again.") from error


def _dequantise(file: Path, directory: Path, dtype: str, tokenizer: bool) -> None:
    import torch
    import transformers

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            **source,
            dtype=getattr(torch, dtype),
            quantization_config=transformers.GgufConfig(dequantize=True),
            trust_remote_code=False,
        )
        model.save_pretrained(directory)
        del model
        if tokenizer:
            transformers.AutoTokenizer.from_pretrained(**source, trust_remote_code=False).save_pretrained(directory)
    except ImportError as error:
        raise UserError(f"The base '{file}' cannot be dequantised: {_brief(error)}") from error
    except OSError as error:
        if error.errno is not None:  # the disk, not the file
            raise
        raise UserError(f"The base '{file}' cannot be dequantised by transformers: {_brief(error)}") from error
    except Exception as error:  # an unknown architecture, a damaged block: whatever its parser raises
        raise UserError(f"The base '{file}' cannot be dequantised by transformers: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
