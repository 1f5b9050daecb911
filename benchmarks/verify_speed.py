"""`hf-recipes verify` against the machine's own pace: plain read and SHA-256 of the same files with as many threads.

    python benchmarks/verify_speed.py [--megabytes 1024] [--rounds 5] [--directory DIR]

Writes a synthetic model of that size in one file and in eight, with a manifest, into a temporary directory, warms the
page cache, and takes turns. Prints medians (the share of CPU time too, which a busy machine changes less), and what the
level "structure" takes for 30 shards and as a whole process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.files import write_json
from hf_recipes.core.tensors import SafetensorsWriter, TensorSpec

CHUNK_BYTES = 2 * 1024 * 1024
HIDDEN, INNER, VOCABULARY = 1024, 4096, 32000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the temporary directory is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        columns = f"{'plain GB/s':>10} {'verify GB/s':>11} {'share':>6} {'CPU share':>10}"
        print(f"{'':22} {columns}   (medians of {options.rounds})")
        for files in (1, 8):
            model = write_model(Path(directory) / f"{files}-files", options.megabytes, files)
            compare_content(f"content, {files} file{'s' if files > 1 else ''}", model, options.rounds)
        many = write_model(Path(directory) / "30-files", min(options.megabytes, 300), 30)
        seconds = median(lambda: require_good(many, "structure"), options.rounds)
        print(f"structure, 30 shards: {seconds * 1e3:.1f} ms")
        command = [sys.executable, "-m", "hf_recipes.cli.main", "verify", str(many), "--level", "structure"]
        seconds = median(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), options.rounds)
        print(f"structure, 30 shards, whole process: {seconds * 1e3:.0f} ms")


def compare_content(name: str, model: Path, rounds: int) -> None:
    files = sorted(model.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    calls: list[Callable[[], object]] = [lambda: read_and_hash(files), lambda: require_good(model, "content")]
    taken: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds + 1):
        for call, times in zip(calls, taken, strict=True):
            cpu = time.process_time()
            times.append((seconds_of(call), time.process_time() - cpu))
    (plain, plain_cpu), (ours, ours_cpu) = (
        (statistics.median(values) for values in zip(*times[1:], strict=True))  # the first round warms up
        for times in taken
    )
    rates = f"{size / plain / 1e9:10.2f} {size / ours / 1e9:11.2f}"
    print(f"{name:22} {rates} {plain / ours:6.0%} {plain_cpu / ours_cpu:10.0%}")


def read_and_hash(files: list[Path]) -> None:
    """What any tool has to do: nothing but reading and hashing, one file a thread."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(cores, len(files))) as pool:
        list(pool.map(hash_file, files))


def hash_file(file: Path) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    with open(file, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(buffer[:count])
    return digest.hexdigest()


def require_good(model: Path, level: str) -> None:
    report = verify_checkpoint(model, level)
    assert report.ok, report.problems


def median(call: Callable[[], object], rounds: int) -> float:
    call()
    return statistics.median(seconds_of(call) for _ in range(rounds))


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def write_model(directory: Path, megabytes: int, shards: int) -> Path:
    """A Llama in bf16 of about that size, its layers spread over the shards, and its manifest."""
    directory.mkdir()
    layer = {
        **{f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"},
        **{f"mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")},
        "mlp.down_proj.weight": (HIDDEN, INNER),
        **{f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")},
    }
    outer = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    per_layer = 2 * sum(int(np.prod(shape)) for shape in layer.values())
    layers = max(shards, (megabytes * 10**6 - 2 * VOCABULARY * HIDDEN) // per_layer)
    tensors = outer | {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        single = "model.safetensors" if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        share = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        write_shard(directory / single, {name: tensors[name] for name in share}, number)
        weight_map |= dict.fromkeys(share, single)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16}
    write_json(directory / "config.json", {"model_type": "llama", "dtype": "bfloat16", **sizes, **heads})
    if shards > 1:
        write_json(directory / "model.safetensors.index.json", {"weight_map": weight_map})
    write_manifest(directory)
    return directory


def write_shard(file: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    source = np.random.default_rng(seed)
    with SafetensorsWriter(file, [TensorSpec(name, "BF16", shape) for name, shape in shapes.items()], {}) as writer:
        for spec in writer.specs:
            values = source.standard_normal(spec.nbytes // 2, dtype=np.float32)
            writer.write(spec.name, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
