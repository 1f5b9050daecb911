"""All of the data's way: read → format → clean → tokenise and mask → split → mix, with an account of every row.

Samples go to disk block by block and stay there, so memory does not grow with the rows but for the few numbers a sample
by which it is chosen. What is on disk is found again by content, settings and tokenizer.
"""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.core.cache import data_cache_directory
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, staged_beside, write_json
from hf_recipes.core.log import logger, recorded
from hf_recipes.data.choosing.samples import PreparedSource, Samples
from hf_recipes.data.choosing.selection import select_samples
from hf_recipes.data.fingerprint import fingerprint
from hf_recipes.data.masking.turn_end import end_of_turn_facts
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import as_specs, unique_labels
from hf_recipes.data.report import selection_report, tell_losses
from hf_recipes.data.settings import DataSettings, as_settings
from hf_recipes.data.source_store import Maker, encode_source, prepare_source
from hf_recipes.data.workers import Shard

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class PreparedData:
    """What the trainer needs.

    `train` and `eval` have the columns ``input_ids``, ``labels`` (-100 where nothing is learned), ``length`` (tokens),
    ``source`` (the source's label) and ``row_id`` (``file:row``); both are mapped from disk. `eval` is None when
    nothing was held out. `report` is written as ``data.json``. `prompt_keys` are those of the training rows (see
    `data.choosing.keys`).
    """

    train: Dataset
    eval: Dataset | None
    report: dict[str, Any]
    prompt_keys: np.ndarray[Any, Any]

    def eval_by_role(self) -> dict[str, Dataset]:
        """The eval set in its parts ``domain`` and ``general``, unmixed; empty parts are left out."""
        return {} if self.eval is None else parts_by_role(self.eval, self.report)


def parts_by_role(rows: Dataset, report: Mapping[str, Any]) -> dict[str, Dataset]:
    """Prepared `rows` in their parts ``domain`` and ``general``, by the roles that `report` gives the sources."""
    roles = {source["source"]: source["role"] for source in report["sources"]}
    of_row = [roles[label] for label in rows["source"]]
    return {
        name: rows.select([index for index, role in enumerate(of_row) if role == name])
        for name in ("domain", "general")
        if name in of_row
    }


def prepare_data(
    datasets: Sequence[SourceSpec | Mapping[str, Any]],
    tokenizer: Any,
    *,
    cache_dir: str | Path | None = None,
    num_proc: int | None = None,
    **settings: Any,
) -> PreparedData:
    """Read, check, clean, tokenise, split and mix the sources of a recipe. The same inputs give the same data anywhere.

    Interrupted, it goes on where it was when called again; called again with the same content, settings and tokenizer,
    it reads what it made. Memory: what the libraries take, a few blocks, and about 320 bytes a sample, 128 of them
    mapped from disk.

    Args:
        datasets: a recipe's ``datasets:``, as mappings or specs; at least one of role ``domain``.
        tokenizer: the model's fast tokenizer, with a chat template unless all sources are plain text.
        cache_dir: where prepared samples lie; by default ``$HF_RECIPES_DATA_CACHE``, else ``data`` in this package's
            cache.
        num_proc: processes that read and tokenise; by default all cores for large files and one for small ones.
        settings: any of `DataSettings`, by name: ``max_length``, ``eval_share``, ``general_share``, ``share_unit``,
            ``max_repeats``, ``assistant_only_loss``, ``mask_history``, ``overlong``, ``bad_rows``, ``clean``, ``seed``.

    Raises:
        UserError: a setting or source is wrong, or nothing of a source is left; says what to do.
    """
    maker = Maker(tokenizer, as_settings(settings), _root(cache_dir), num_proc)
    specs = as_specs(datasets)
    sources = [prepare_source(spec, label, maker) for spec, label in zip(specs, unique_labels(specs), strict=True)]
    return _selected(Samples(sources), maker)


def prepare_shard(
    datasets: Sequence[SourceSpec | Mapping[str, Any]],
    tokenizer: Any,
    shard: tuple[int, int],
    *,
    cache_dir: str | Path | None = None,
    num_proc: int | None = None,
    **settings: Any,
) -> None:
    """Do one shard of the work of `prepare_data`, which puts the shards together once all are done.

    Args:
        shard: (index, count): of every `count` blocks the one with this index, from 0. `cache_dir` must be one
            directory for all shards.

    Raises:
        UserError: as `prepare_data`.
    """
    maker = Maker(tokenizer, as_settings(settings), _root(cache_dir), num_proc)
    specs = as_specs(datasets)
    for spec, label in zip(specs, unique_labels(specs), strict=True):
        encode_source(spec, label, maker, Shard(*shard))


def _root(cache_dir: str | Path | None) -> Path:
    root = Path(cache_dir).expanduser() if cache_dir else data_cache_directory()
    if root.exists() and not root.is_dir():
        raise UserError(f"data_cache_dir: '{root}' is a file: name a directory for prepared samples.")
    return root


def _selected(samples: Samples, maker: Maker) -> PreparedData:
    """Choose the samples, or read what was chosen before from the same ones."""
    key = _fingerprint(samples.sources, maker.settings)
    directory = maker.root / "selections" / key
    saved = _saved_selection(directory)
    if saved is None:
        _select(samples, maker, directory, key)
        saved = _saved_selection(directory)
        assert saved is not None
    else:
        for level, message in saved[0]["told"]:
            logger.log(level, "%s", message)
    report, train, held_out = saved
    tell_losses(report)
    if maker.settings.eval_share > 0 and not len(held_out):
        logger.warning(
            "eval_share %g holds nothing out: the sources are too small, or what must stay together in them too large.",
            maker.settings.eval_share,
        )
    dataset = samples.dataset
    eval_rows = dataset.select(held_out) if len(held_out) else None
    return PreparedData(dataset.select(train), eval_rows, report, samples.column("prompt_key")[train])


def _saved_selection(directory: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray] | None:
    """Report, training and eval samples; None where they were not chosen yet, or what was written is damaged."""
    try:
        with np.load(directory / "samples.npz") as chosen:
            return read_json(directory / "report.json"), chosen["train"], chosen["eval"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _select(samples: Samples, maker: Maker, directory: Path, key: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with recorded() as told, tempfile.TemporaryDirectory(dir=directory) as work_directory:
        selection = select_samples(samples, maker.settings, Path(work_directory))
        end_of_turn = end_of_turn_facts(maker.encoder, [source.format for source in samples.sources])
    staged = staged_beside(directory / "samples.npz", "npz")
    np.savez(staged, train=selection.train, eval=selection.eval)
    staged.replace(directory / "samples.npz")
    report = selection_report(samples, selection, maker.settings)
    report |= {
        "end_of_turn": end_of_turn,
        "settings": asdict(maker.settings),
        "fingerprint": key,
        "told": told,
    }
    write_json(directory / "report.json", report)  # last: it says that the selection is whole


def _fingerprint(sources: Sequence[PreparedSource], settings: DataSettings) -> str:
    """What the chosen samples are decided by."""
    specs = [{item.name: getattr(source.spec, item.name) for item in fields(source.spec)} for source in sources]
    return fingerprint({"sources": [source.key for source in sources], "specs": specs, "settings": asdict(settings)})
