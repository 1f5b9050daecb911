"""Every fault that is put into a checkpoint at rest: what it is called, and what does it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults import changes, damage
from faults.changes import MARK_DAMAGES, MARKS, files_of, weights_of

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Fault:
    """One way to damage the newest of three checkpoints.

    `harmful`: it must be found; else the checkpoint stays good. `bare`: no checkpoint of the run has a manifest.
    `by_choice_only`: sound for whoever looks at this directory alone, but not to be resumed from. `alone_in_a_run`:
    where no other checkpoint is left, only the run.json that every run of a recipe has tells that manifests are
    written; in a foreign directory a checkpoint without one may be good.
    """

    kind: str
    name: str
    apply: Callable[[Path], None]
    harmful: bool = True
    bare: bool = False
    by_choice_only: bool = False
    alone_in_a_run: bool = False


def faults_of(checkpoint: Path, chance: random.Random) -> list[Fault]:
    """All faults for a checkpoint like this one."""
    makers = (_truncations, _flips, _zeroes, _swaps, _missing, _left_over, _values, _power_losses, _marks, _bare)
    return [fault for maker in makers for fault in maker(checkpoint, chance)]


def _is_archive(name: str) -> bool:
    return name.endswith((".pt", ".pth", ".bin"))


def _places(file: Path, chance: random.Random) -> dict[str, int]:
    """Name → size to cut the file to: every kind of place in it."""
    size = file.stat().st_size
    places = {"empty": 0, "one byte left": 1, "one byte short": size - 1, "anywhere": chance.randrange(1, size)}
    if file.suffix == ".safetensors":
        first, *_, last = ranges = damage.tensor_ranges(file)
        inner = chance.choice(ranges)
        middle = (inner.start + inner.end) // 2
        places |= {
            "in the header's length": 4,
            "in the header": first.start // 2,
            "where the tensors begin": first.start,
        }
        places |= {
            "in a tensor": middle,
            "where a tensor ends": inner.end - (inner is last),
            "in the last": last.start + 1,
        }
    elif _is_archive(file.name):
        records = damage.record_ranges(file)
        _, start, end = records[0]
        directory = file.read_bytes().index(b"PK\x01\x02")
        places |= {"in a local header": 10, "in a record": (start + end) // 2}
        places |= {"at the directory": directory, "in the directory": directory + 30, "in the end record": size - 10}
    else:
        places |= {"in the middle": size // 2, "before the last brace": file.read_bytes().rindex(b"}") - 1}
    return places


def _says_the_same(file: Path, size: int) -> bool:
    """Whether a JSON file cut to `size` only loses the end of its last line."""
    return file.suffix == ".json" and file.read_bytes()[size:].strip() == b""


def _truncations(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    for name in files_of(checkpoint):
        if name == "README.md" or name in MARKS:
            continue
        for place, size in _places(checkpoint / name, chance).items():
            cut = partial(changes.in_file, name, partial(damage.truncate, size=size))
            yield Fault("truncated file", f"{name} cut to {size} bytes ({place})", cut)


def _flips(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    kind = "one flipped bit"
    for name in weights_of(checkpoint):
        ranges = damage.tensor_ranges(checkpoint / name)
        for tensor in ranges:
            yield _flip(kind, name, chance.randrange(tensor.start, tensor.end), chance, f"in {tensor.name}")
        yield _flip(kind, name, chance.randrange(8), chance, "in the header's length")
        for _ in range(3):
            yield _flip(kind, name, chance.randrange(8, ranges[0].start), chance, "in the header")
    for name in files_of(checkpoint):
        if name in MARKS or name in weights_of(checkpoint):
            continue
        size = (checkpoint / name).stat().st_size
        for _ in range(6 if name.startswith("optimizer") else 3):
            yield _flip(kind, name, chance.randrange(size), chance)


def _flip(kind: str, name: str, byte: int, chance: random.Random, where: str = "") -> Fault:
    bit = chance.randrange(8)
    change = partial(changes.in_file, name, partial(damage.flip, byte=byte, bit=bit))
    return Fault(kind, f"{name}: bit {bit} of byte {byte} {where}".rstrip(), change)


def _zeroes(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    kind = "zeroed tensor or page"
    for name in weights_of(checkpoint):
        ranges = [
            tensor for tensor in damage.tensor_ranges(checkpoint / name) if any(_bytes(checkpoint / name, tensor))
        ]
        for tensor in chance.sample(ranges, min(5, len(ranges))):
            clear = partial(damage.zero, start=tensor.start, end=tensor.end)
            yield Fault(kind, f"{name}: {tensor.name} all zero", partial(changes.in_file, name, clear))
    for name in files_of(checkpoint):
        if (pages := (checkpoint / name).stat().st_size // PAGE_BYTES) > 1:
            page = 1 + chance.randrange(pages - 1)
            clear = partial(damage.zero, start=page * PAGE_BYTES, end=(page + 1) * PAGE_BYTES)
            yield Fault(kind, f"{name}: page {page} zero", partial(changes.in_file, name, clear))


def _bytes(file: Path, tensor: damage.Range) -> bytes:
    return file.read_bytes()[tensor.start : tensor.end]


def _swaps(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    for name in weights_of(checkpoint):
        for first, second in alike(checkpoint / name, chance)[:3]:
            pair = f"{first.name} and {second.name}"
            data = partial(damage.exchange, first=(first.start, first.end), second=(second.start, second.end))
            yield Fault("swapped tensors", f"{name}: the values of {pair}", partial(changes.in_file, name, data))
            names = partial(damage.rename_tensors, first=first.name, second=second.name)
            yield Fault("swapped tensors", f"{name}: the names of {pair}", partial(changes.in_file, name, names))
    shards = weights_of(checkpoint)
    if len(shards) > 1:
        yield Fault(
            "swapped files", f"{shards[0]} and {shards[1]}", partial(changes.exchange_files, shards[0], shards[1])
        )
    whole = partial(changes.take_all_from, 2)
    yield Fault("swapped files", "all of checkpoint-2 under the name of checkpoint-3", whole, by_choice_only=True)
    # The file of another step is whole and sound: only its belonging here is wrong.
    for name in [
        *shards,
        "optimizer.pt",
        "scheduler.pt",
        "trainer_state.json",
        "rng_state.pth",
        "rng_state_1.pth",
        *MARKS,
    ]:
        if not (checkpoint / name).exists():
            continue
        for earlier in (1, 2):
            swap = partial(changes.take_from, name, earlier)
            harmful = name != "verified.json"
            yield Fault("swapped files", f"{name} of checkpoint-{earlier} in checkpoint-3", swap, harmful=harmful)


def alike(file: Path, chance: random.Random) -> list[tuple[damage.Range, damage.Range]]:
    """Pairs of tensors that have one shape and differ."""
    ranges = damage.tensor_ranges(file)
    pairs = [(a, b) for a, b in itertools.combinations(ranges, 2) if (a.shape, a.dtype) == (b.shape, b.dtype)]
    pairs = [(a, b) for a, b in pairs if _bytes(file, a) != _bytes(file, b)]
    return chance.sample(pairs, len(pairs))


def _missing(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    for name in files_of(checkpoint):
        if name not in MARKS:
            yield Fault("missing file", name, partial(changes.remove, name))
    yield Fault("missing file", "scaler.pt of an fp16 run", changes.lose_the_scaler)


def _left_over(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    weights = weights_of(checkpoint)
    stem = weights[0].split("-0")[0].removesuffix(".safetensors")
    for shard in (f"{stem}-00001-of-00009.safetensors", f"{stem}-00009-of-00009.safetensors"):
        yield Fault("stale shard or index", f"{shard} of another save", partial(changes.copy_within, weights[0], shard))
    index = f"{stem}.safetensors.index.json"
    for moves in ("to a shard that is not there", "to the wrong shard", "of a tensor that is not there"):
        yield Fault(
            "stale shard or index", f"{index} points {moves}", partial(changes.stale_index, index, weights, moves)
        )


def _values(checkpoint: Path, chance: random.Random, bare: bool = False) -> Iterator[Fault]:
    kind = _named("NaN, Inf, shape [0]", bare)
    for name in weights_of(checkpoint):
        ranges = damage.tensor_ranges(checkpoint / name)
        for tensor in chance.sample(ranges, min(3, len(ranges))):
            for value in (float("nan"), float("inf")):
                put = partial(damage.put_value, tensor=tensor, value=value)
                yield Fault(kind, f"{tensor.name}: one {value}", partial(changes.in_file, name, put), bare=bare)
            empty = partial(damage.empty_tensor, name=tensor.name)
            yield Fault(kind, f"{tensor.name}: shape [0]", partial(changes.in_file, name, empty), bare=bare)


def _power_losses(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    """Files of the right size whose data never reached the disk, from some page on or all of it."""
    for name in files_of(checkpoint):
        if name in MARKS:
            continue
        size = (checkpoint / name).stat().st_size
        for begin in sorted({0, size // PAGE_BYTES // 2 * PAGE_BYTES}):
            place = f"{name}: zeros from byte {begin}"
            yield Fault(
                "power loss", f"{place}, manifest present", partial(changes.lose_power, name, begin, size, True)
            )
            lose = partial(changes.lose_power, name, begin, size, False)
            yield Fault("power loss", f"{place}, none", lose, by_choice_only=True, alone_in_a_run=True)


def _marks(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    """The manifest and the mark of the verification are files too."""
    manifest = checkpoint / "manifest.json"
    for place, size in _places(manifest, chance).items():
        if not _says_the_same(manifest, size):
            cut = partial(changes.in_file, manifest.name, partial(damage.truncate, size=size))
            yield Fault("damaged manifest", f"cut to {size} ({place})", cut)
    for _ in range(12):
        byte, bit = changes.flip_in_json(manifest, chance)
        turn = partial(changes.in_file, manifest.name, partial(damage.flip, byte=byte, bit=bit))
        yield Fault("damaged manifest", f"bit {bit} of byte {byte}", turn)
    yield Fault("damaged manifest", "all zero", partial(changes.zero_all, manifest.name))
    yield Fault("damaged manifest", "another valid JSON", lambda at: (at / "manifest.json").write_text("[]"))
    for way in MARK_DAMAGES:
        spoil = partial(changes.spoil_mark, way, chance.randrange(2**32))
        yield Fault("verified.json damaged", f"of a good checkpoint: {way}", spoil, harmful=False)
        spoil = partial(changes.write_nan, way, chance.randrange(2**32))
        yield Fault("verified.json damaged", f"of one with NaN: {way}", spoil)


def _bare(checkpoint: Path, chance: random.Random) -> Iterator[Fault]:
    """What must be found without any manifest."""
    weights = ("model", "adapter_model", "adapter_config")
    for name in files_of(checkpoint):
        file = checkpoint / name
        if name in MARKS or name == "README.md":
            continue
        for place, size in _places(file, chance).items():
            if _says_the_same(file, size):
                continue
            cut = partial(changes.in_file, name, partial(damage.truncate, size=size))
            yield Fault(_named("truncated file", True), f"{name} cut to {size} ({place})", cut, bare=True)
        if _is_archive(name) and name != "training_args.bin":
            for record, start, end in damage.record_ranges(file)[:3]:
                change = partial(damage.flip, byte=chance.randrange(start, end), bit=chance.randrange(8))
                yield Fault(
                    _named("one flipped bit", True),
                    f"{name}: {record}",
                    partial(changes.in_file, name, change),
                    bare=True,
                )
        if name.startswith((*weights, "optimizer", "scheduler", "rng_state", "trainer_state")):
            by_choice = not name.startswith(weights)
            yield Fault(
                _named("missing file", True), name, partial(changes.remove, name), bare=True, by_choice_only=by_choice
            )
    yield from _values(checkpoint, chance, bare=True)


def _named(kind: str, bare: bool) -> str:
    return f"{kind}, no manifest" if bare else kind
