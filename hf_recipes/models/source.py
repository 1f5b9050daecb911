"""Where a model comes from: a local directory, a GGUF file or the Hub, told apart before anything is loaded."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import tensor_files
from hf_recipes.models.attention import NO_FLASH_ATTENTION

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Hashing a base costs a read of all its bytes; past this size the revision has to do.
_MAX_HASHED_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class ModelSource:
    """A base model: `name_or_path` to load from, Hub `revision`, `gguf_file` inside the directory, and a `label`."""

    name_or_path: str
    revision: str | None
    label: str
    gguf_file: str | None = None

    def load_arguments(self) -> dict[str, str]:
        """Keyword arguments that `from_pretrained` needs to find this source."""
        arguments = {}
        if self.revision:
            arguments["revision"] = self.revision
        if self.gguf_file:
            arguments["gguf_file"] = self.gguf_file
        return arguments

    def identity(self) -> dict[str, object]:
        """What run.json keeps, so that a merge can tell another base: name, revision, and hashes of local weights."""
        place = Path(self.name_or_path)
        files = [place / self.gguf_file] if self.gguf_file else tensor_files(place) if place.is_dir() else []
        small = sum(file.stat().st_size for file in files) <= _MAX_HASHED_BYTES
        hashes = {file.name: sha256_of_file(file) for file in files} if files and small else None
        name = str(Path(self.name_or_path) / self.gguf_file) if self.gguf_file else self.name_or_path
        return {
            "name_or_path": name,
            "revision": self._commit() or self.revision,
            "source": self.label,
            "weights_sha256": hashes,
        }

    def _commit(self) -> str | None:
        """The commit that a Hub name stands for in the cache, once its config was fetched."""
        if self.label != "Hugging Face Hub":
            return None
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(self.name_or_path, "config.json", revision=self.revision)
        return Path(file).parent.name if isinstance(file, str) else None


def find_model(name_or_path: str | Path, revision: str | None = None) -> ModelSource:
    """Resolve a directory, a ``.gguf`` file or a Hub name; nothing is loaded.

    SmolLM2-135M-Instruct, the model of the quickstart, is also found where there is no Hub (`models.smollm2`).

    Raises:
        UserError: no name at all, something written as a path that does not exist, or a directory without a model.
    """
    if not isinstance(name_or_path, (str, Path)) or not str(name_or_path):
        raise UserError(f"model_name_or_path is {name_or_path!r}: give a directory, a .gguf file or a Hub name.")
    name_or_path = str(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(str(path.parent), None, "local GGUF file", path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            what = "an adapter, not a base model" if (path / "adapter_config.json").is_file() else "no model"
            raise UserError(f"'{name_or_path}' holds {what} (no config.json): give a model directory.")
        return ModelSource(str(path), None, "local directory")
    if path.exists() or name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise UserError(f"model_name_or_path: '{name_or_path}' is not a model directory or a .gguf file.")
    if name_or_path == SMOLLM2 and revision in (None, "main"):
        from hf_recipes.models.smollm2 import find_smollm2

        found = find_smollm2()
        return ModelSource(str(found.path), found.revision, found.source)
    return ModelSource(name_or_path, revision, "Hugging Face Hub")


@functools.cache
def tell_trusted_code(source: ModelSource) -> None:
    """Say, once a process, that ``trust_remote_code`` lets the Python files of a model run."""
    pinned = source.label != "Hugging Face Hub" or source.revision
    advice = "" if pinned else "; without a model_revision it may be other code tomorrow"
    logger.warning(
        "trust_remote_code: Python that comes with '%s' runs here, with all your rights%s.", source.name_or_path, advice
    )


@contextmanager
def one_sentence(source: ModelSource) -> Iterator[None]:
    """Turn what the Hub client and transformers raise for an absent, gated or unreachable model into one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise whatever their parser raises: KeyError, SafetensorError …
        name, text = source.name_or_path, " ".join(f"{type(error).__name__}: {error}".split())
        if "custom code" in text:
            raise UserError(
                f"Model '{name}' comes with Python of its own, which is not run here: use a model that transformers "
                "knows, or, to train it, read that code and write trust_remote_code: true with a fixed model_revision."
            ) from None
        if "gated" in text.lower() or "401" in text or "403" in text:
            raise UserError(
                f"Model '{name}' is gated or private: accept its terms on its page, then log in with `hf auth login`."
            ) from error
        if any(sign in text for sign in ("is not a local folder", "couldn't connect", "offline", "not a valid model")):
            raise UserError(
                f"Model '{name}' is not in the cache and the Hub did not have it or cannot be reached: check the name, "
                "go online, or give the path of a local directory."
            ) from error
        if "FlashAttention" in text and "install" in text:
            raise UserError(NO_FLASH_ATTENTION) from error
        raise UserError(f"Model '{name}' cannot be loaded: {text[:300]}") from error
