"""Which samples are trained on and which are held out: corpus rules, then the split, then the mixture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.choosing.corpus import Sieve, drop_duplicates, drop_for_balance, drop_length_outliers
from hf_recipes.data.choosing.leakage import Overlap, overlap
from hf_recipes.data.choosing.near_duplicates import like_any_of, near_clusters
from hf_recipes.data.choosing.samples import Samples
from hf_recipes.data.choosing.split import Splitter, join_clusters
from hf_recipes.data.mixing.mixture import Mixture, choose_mixture, shuffled, tell_no_general, tell_short
from hf_recipes.data.reading.sources import eval_share_of
from hf_recipes.data.settings import DataSettings

Array = np.ndarray[Any, Any]
_UNIT_COLUMNS = {"tokens": "length", "supervised_tokens": "supervised_tokens"}


@dataclass
class Selection:
    """What was chosen, by sample number.

    Attributes:
        train: in the order of training; general samples may be in more than once, where that was asked.
        eval: source after source.
        dropped: of each source, reason → samples that a corpus rule took out (all parts of a row).
        duplicates: of each source, how many samples repeat an earlier one: {"exact": n, "near": n}, dropped or not.
        mixture: None without a general source.
        leakage: how eval samples meet training samples: exact, near, prompt.
    """

    train: Array
    eval: Array
    dropped: list[dict[str, Array]]
    duplicates: list[dict[str, int]]
    mixture: Mixture | None = None
    leakage: dict[str, Overlap] = field(default_factory=dict)


def select_samples(samples: Samples, settings: DataSettings, work_directory: Path) -> Selection:
    """Choose among all samples. Takes about 190 bytes a sample, and 128 mapped from a file in `work_directory`."""
    keys = samples.column("key")
    bands = _bands_on_disk(samples, work_directory)
    near = near_clusters(bands, settings.clean.near_threshold)
    exact = join_clusters(keys, _parts_together(samples))
    sieve = Sieve.all_of(samples)
    drop_length_outliers(sieve, settings)
    duplicates = drop_duplicates(sieve, settings, exact, near, bands)
    drop_for_balance(sieve, settings)
    together = join_clusters(exact, samples.column("group"))
    clusters = join_clusters(together, _near_where_possible(samples, settings, near))
    _drop_given_eval(sieve, settings, together, near, bands)
    held_out = _hold_out(sieve, settings, clusters, keys)
    train = np.flatnonzero(sieve.alive & ~held_out)
    if not len(train):
        reasons = [(why, len(which)) for of_source in sieve.dropped for why, which in of_source.items()]
        why = "; ".join(f"{count} × {reason}" for reason, count in reasons)
        raise UserError(f"No row is left to train on ({why or 'all are held out'}): give other data.")
    mixture, train = _mix(samples, settings, train)
    order = shuffled(len(train), settings.seed)
    selection = Selection(train[order], np.flatnonzero(sieve.alive & held_out), sieve.dropped, duplicates, mixture)
    prompts = samples.column("prompt_key")
    selection.leakage = {
        "exact": overlap(keys, selection.train, selection.eval),
        "near": overlap(near, selection.train, selection.eval, but=keys),
        "prompt": overlap(prompts, selection.train, selection.eval, but=near),
    }
    return selection


def _bands_on_disk(samples: Samples, directory: Path) -> Array:
    """The MinHash bands of all samples as an array mapped from a file, one row a sample."""
    file, start = directory / "bands.npy", 0
    bands: Array | None = None
    for source in samples.sources:
        for block in source.store.bands():
            if bands is None:
                bands = np.lib.format.open_memmap(file, "w+", np.uint64, (len(samples), block.shape[1]))
            bands[start : start + len(block)] = block
            start += len(block)
    return np.empty((0, 0), np.uint64) if bands is None else bands


def _parts_together(samples: Samples) -> Array:
    """A number a row, the same for all samples that a row was split into."""
    return np.cumsum(samples.column("part") == 0)


def _from_given_eval(samples: Samples) -> Array:
    flags = [source.spec.is_given_eval for source in samples.sources]
    return np.repeat(np.array(flags, bool), np.diff(samples.starts))


def _near_where_possible(samples: Samples, settings: DataSettings, near: Array) -> Array:
    """Near-duplicate clusters, but every sample by itself in sources whose rows are so alike that their clusters cannot
    be split."""
    first_part = samples.column("part") == 0
    specs = [source.spec for source in samples.sources]
    possible = near.copy()
    for number, source in enumerate(samples.sources):
        inside = samples.numbers(number)
        inside = inside[first_part[inside]]
        share = eval_share_of(source.spec, specs, settings.eval_share)
        if not 0 < share < 1 or len(inside) < 2:
            continue
        sizes = np.unique(near[inside], return_counts=True)[1]
        in_large = int(sizes[sizes > max(1, share * len(inside))].sum())
        if in_large > len(inside) / 2:
            logger.warning(
                "%s: %.0f %% of the rows are near duplicates of so many others that they cannot be kept on one side of "
                "the split; only exact duplicates are.",
                source.label,
                100 * in_large / len(inside),
            )
            own = samples.numbers(number)
            possible[own] = len(samples) + own
    return possible


def _drop_given_eval(sieve: Sieve, settings: DataSettings, together: Array, near: Array, bands: Array) -> None:
    """Take out training rows that a given eval set holds; those that only nearly are in it, where near duplicates are
    to be dropped (elsewhere they are told as leakage: rows of one template are all near duplicates)."""
    given = _from_given_eval(sieve.samples)
    sieve.drop(np.isin(together, together[given]) & ~given, "stands in a given eval set too")
    if settings.clean.duplicates == "near":
        alike = like_any_of(bands, near, given, settings.clean.near_threshold)
        sieve.drop(alike & ~given, "near duplicate of a given eval row")


def _hold_out(sieve: Sieve, settings: DataSettings, clusters: Array, keys: Array) -> Array:
    """Which samples are held out."""
    samples = sieve.samples
    held_out = _from_given_eval(samples)
    splitter = Splitter(len(samples), settings.seed)
    splitter.hold_out_all(clusters[held_out])
    strata = samples.column("stratum")
    specs = [source.spec for source in samples.sources]
    shares = [eval_share_of(spec, specs, settings.eval_share) for spec in specs]
    # Sources of which nothing is held out come first: what they train on, no other may hold out.
    for number in sorted(range(len(specs)), key=lambda number: shares[number] > 0):
        if not specs[number].is_given_eval:
            inside = sieve.inside(number)
            by = strata[inside] if specs[number].stratify_by else None
            held_out[inside] = splitter.split(clusters[inside], keys[inside], shares[number], by)
    return held_out


def _mix(samples: Samples, settings: DataSettings, train: Array) -> tuple[Mixture | None, Array]:
    """The mixture, and the training samples with only as many general ones as their share calls for."""
    of_source = samples.source_of(train)
    general = [
        number
        for number, source in enumerate(samples.sources)
        if source.spec.role == "general" and not source.spec.is_given_eval
    ]
    if not general:
        tell_no_general(settings.general_share)
        return None, train
    if settings.general_share == 0:
        logger.warning("general_share is 0, so no row of the general sources is trained on.")
    sizes = _sizes(samples, settings.share_unit)
    parts = [train[of_source == number] for number in general]
    domain = train[~np.isin(of_source, general)]
    mixture = choose_mixture(
        float(sizes[domain].sum()),
        [sizes[part] for part in parts],
        settings.general_share,
        settings.seed,
        [samples.sources[number].spec.weight for number in general],
        settings.max_repeats,
    )
    tell_short(mixture, settings.share_unit)
    chosen = [part[rows] for part, rows in zip(parts, mixture.chosen, strict=True)]
    return mixture, np.concatenate([domain, *chosen])


def _sizes(samples: Samples, unit: str) -> Array:
    return np.ones(len(samples), np.int64) if unit == "rows" else samples.column(_UNIT_COLUMNS[unit])
