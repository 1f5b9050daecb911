"""Models and adapters by their Hub name: from the local cache, else fetched into it; only what a merge reads."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.free_space import check_free_space
from hf_recipes.core.log import logger
from hf_recipes.core.tensors import INDEX_NAMES, SINGLE_NAMES, DamagedFile, tensor_files

_NAME = re.compile(r"^(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?$")
# Config, tokenizer, chat template, generation config, index. No weights of torch's pickles, no Python files.
_COMPANIONS = re.compile(r"^([^/]+\.(json|jinja|txt|model)|additional_chat_templates/[^/]+\.jinja)$")
_UNWANTED = re.compile(r"(\.bin\.index|^tf_model.*|^flax_model.*|^training_args|^trainer_state|^all_results)\.json$")
_SECONDS = 5.0  # for the first answer; `snapshot_download` alone would retry a dead network for long
_INSTEAD = {"base model": "give its directory with --base", "adapter": "give its directory"}

CheckConfig = Callable[[dict[str, Any], list[str]], None]


def split_name(text: str) -> tuple[str, str | None] | None:
    """``org/name`` or ``org/name@revision`` → name and revision; None for what is written as a path."""
    match = _NAME.match(text)
    if match is None or text.startswith(("-", ".", "~", "/")):
        return None
    return match["name"], match["revision"]


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """The snapshot of a Hub model or adapter in the local cache if config and all weights are there, else None."""
    from huggingface_hub import snapshot_download

    try:
        directory = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=[]))
        files = tensor_files(directory)
    except (OSError, ValueError):  # not there; an index that is damaged, or leads elsewhere
        return None
    has_config = any((directory / config).is_file() for config in ("config.json", "adapter_config.json"))
    return directory if has_config and files and all(file.is_file() for file in files) else None


def fetch_snapshot(name: str, revision: str | None, what: str, check: CheckConfig | None = None) -> Path:
    """A Hub model or adapter, from the cache or fetched into it.

    Fetched are the safetensors files that make up the model, its JSON, template and vocabulary files; never pickled
    weights (``*.bin``, ``*.pth``) and never Python files.

    Args:
        name: on the Hub.
        revision: branch, tag or commit; None for the main branch.
        what: a key of `_INSTEAD`: ``base model`` or ``adapter``.
        check: called with the config before any weights are fetched, and with the names its model card gives as its
            base; may raise.

    Returns:
        The snapshot's directory, whose name is the commit.

    Raises:
        UserError: it is neither whole in the cache nor can it be had: one sentence within seconds.
    """
    if found := cached_snapshot(name, revision):
        return found
    from huggingface_hub import HfApi, is_offline_mode

    label = f"{name}@{revision}" if revision else name
    if is_offline_mode():
        raise UserError(
            f"The {what} '{label}' is neither a directory nor whole in the Hugging Face cache, and the Hub is switched "
            f"off by HF_HUB_OFFLINE: unset it, or {_INSTEAD[what]}."
        )
    with _one_sentence(label, what):
        info = HfApi().model_info(name, revision=revision, timeout=_SECONDS, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    return _fetch(name, revision, label, what, sizes, _card_bases(info), check)


def _fetch(
    name: str,
    revision: str | None,
    label: str,
    what: str,
    sizes: dict[str, int],
    card_bases: list[str],
    check: CheckConfig | None,
) -> Path:
    small = [file for file in sizes if _COMPANIONS.match(file) and not _UNWANTED.search(file)]
    directory = _download(name, revision, label, what, small)
    config_file = directory / ("adapter_config.json" if what == "adapter" else "config.json")
    config = read_json(config_file) if config_file.is_file() else {}
    if check:
        check(config, card_bases)
    weights = _weights(directory, sizes)
    if not weights:
        pickled = any(file.endswith((".bin", ".pth", ".pt")) for file in sizes)
        why = "only pickled weights, which may run code" if pickled else "no weights"
        raise UserError(f"The {what} '{label}' holds {why}, no safetensors: name one that does.")
    nbytes = sum(sizes[file] for file in weights)
    cure = "make room, or point HF_HOME to another disk"
    check_free_space(directory, nbytes, f"'{label}' is", cure, place="the Hugging Face cache")
    logger.info("Fetching the %s '%s' from the Hub: %d files, %.2f GB.", what, label, len(weights), nbytes / 1e9)
    if config.get("auto_map"):
        logger.warning("'%s' has Python files of its own, which were not fetched: the merged model needs them.", label)
    started = time.perf_counter()
    _download(name, revision, label, what, [*small, *weights])
    logger.info("Fetched in %.0f s into %s.", time.perf_counter() - started, directory)
    return directory


def _weights(directory: Path, sizes: dict[str, int]) -> list[str]:
    """The safetensors files that make up the model: those its index names, else the single one."""
    if any((directory / index).is_file() for index in INDEX_NAMES):
        try:
            return [file.relative_to(directory).as_posix() for file in tensor_files(directory)]
        except DamagedFile as error:
            raise UserError(f"{error}; name another model, or tell whoever made this one.") from None
    return [single for single in SINGLE_NAMES if single in sizes][:1]


def _download(name: str, revision: str | None, label: str, what: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    with _one_sentence(label, what):
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, etag_timeout=_SECONDS))


def _card_bases(info: Any) -> list[str]:
    """What the model card gives as the model's base."""
    card = info.card_data
    named = card.get("base_model") if card else None
    return [named] if isinstance(named, str) else [str(each) for each in named or []]


@contextmanager
def _one_sentence(label: str, what: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one sentence with what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise UserError(
            f"The {what} '{label}' is gated: accept its terms on its page, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"The {what} '{label}' has no such revision on the Hub: check it.") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"The {what} '{label}' is neither a directory here nor a model on the Hub (or it is private: log in with "
            "`hf auth login`): check the name."
        ) from error
    except Exception as error:  # no network, a proxy, a Hub that is down: whatever the client's transport raises
        raise UserError(
            f"The {what} '{label}' is not whole in the Hugging Face cache and the Hub did not give it "
            f"({type(error).__name__}): go online, or {_INSTEAD[what]}."
        ) from error
