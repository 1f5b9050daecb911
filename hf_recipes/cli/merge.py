"""`hf-recipes merge`: adapters into their base, tensor by tensor, proven."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_recipes.cli.flags import positive
from hf_recipes.core.dtypes import SHORT_NAMES, canonical_dtype_name
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.printable import printable
from hf_recipes.core.run_directory import RunDirectory, find_run, is_run

HELP = "merge an adapter, or several, into the 16-bit base, tensor by tensor, and prove the result"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "directories",
        nargs="*",
        metavar="DIR",
        help="a run, an adapter, a checkpoint or org/name on the Hub (default: here, else the newest run); several are "
        "combined",
    )
    parser.add_argument("--to", required=True, metavar="DTYPE", help="bf16, fp16 or fp32, for every tensor")
    parser.add_argument("--output", metavar="DIR", help="default: RUN/merged-DTYPE, or ADAPTER-merged-DTYPE beside it")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing output, once the new one is whole"
    )
    parser.add_argument(
        "--max-shard-size", metavar="SIZE", help="of an output file: 5GB (default: files as in the base)"
    )
    parser.add_argument(
        "--proof",
        choices=("tensors", "logits", "off"),
        default="tensors",
        help="tensors: read all files again and recompute (default); logits: also compare with the live adapter",
    )
    _add_base_arguments(parser.add_argument_group("base"))
    _add_combining_arguments(parser.add_argument_group("several adapters"))
    parser.add_argument("--threads", type=positive, metavar="N", help="default: one a core, 8 at most")
    parser.add_argument("--device", default="cpu", help="cuda: products and sums on a GPU (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_base_arguments(group: Any) -> None:
    group.add_argument(
        "--base",
        metavar="PLACE",
        help="in place of the one the adapter names: a directory, a .gguf file, or org/name[@revision] on the Hub",
    )
    group.add_argument(
        "--allow-other-base",
        action="store_true",
        help="merge though the base is not the one recorded when the adapter was trained",
    )
    group.add_argument(
        "--base-values",
        choices=("original", "dequantized"),
        default="original",
        help="dequantized: what QLoRA training computed with, on the layers it quantised",
    )
    group.add_argument(
        "--quantization", metavar="NF4,DOUBLE,BF16", help="how training quantised, where no run.json says it"
    )
    group.add_argument(
        "--parity",
        action="store_true",
        help="merge nothing: compare both base values with the adapter as trained, and print the table",
    )


def _add_combining_arguments(group: Any) -> None:
    group.add_argument(
        "--weights", type=_numbers, metavar="W,W", help="one for each adapter (default: 1 each); negative: un-merge"
    )
    group.add_argument(
        "--combine",
        choices=("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune"),
        default="linear",
        help="linear: their weighted sum (default)",
    )
    group.add_argument("--density", type=float, metavar="SHARE", help="of each update that is kept; not for linear")
    group.add_argument("--seed", type=int, default=0, help="of what DARE drops (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Merge, print the report and return 0; what goes wrong is raised."""
    dtype = canonical_dtype_name(args.to, "--to", "bf16, fp16 or fp32")
    if dtype not in SHORT_NAMES:
        raise UserError(f"--to: '{args.to}' names no dtype to merge to: write bf16, fp16 or fp32.")
    for flag in ("output", "base", "quantization", "max_shard_size"):
        if getattr(args, flag) == "":  # as of a variable that is not set; without the flag it would mean another thing
            raise UserError(f"--{flag.replace('_', '-')} is empty: give a value, or leave it out.")
    adapters, default_output = _adapters_and_output(args.directories, SHORT_NAMES[dtype])
    output = Path(args.output) if args.output else default_output
    with ended_by_signals():
        return _print_parity(args, adapters, output, dtype) if args.parity else _merge(args, adapters, output, dtype)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an error does, so that nothing half-written is left; ignored ones stay so."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    own = threading.current_thread() is threading.main_thread()
    taken = [number for number in numbers if own and signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _merge(args: argparse.Namespace, adapters: list[Path | str], output: Path, dtype: str) -> int:
    from hf_recipes.export.combination import Combination
    from hf_recipes.export.merge import merge_adapter

    report = merge_adapter(
        adapters,
        base=args.base,
        output=output,
        dtype=dtype,
        proof=args.proof,
        overwrite=args.overwrite,
        allow_other_base=args.allow_other_base,
        combination=Combination(args.combine, args.weights or (), args.density, seed=args.seed),
        base_values=args.base_values,
        quantization=args.quantization,
        max_shard_size=args.max_shard_size,
        threads=args.threads,
        device=args.device,
        **(_samples(adapters) if args.proof == "logits" else {}),
    )
    if len(adapters) == 1 and is_run(directory := Path(adapters[0]).absolute().parent):
        from hf_recipes.export.card import write_model_card

        write_model_card(directory, report.output, merge=report.to_dict())
    print(json.dumps(report.to_dict(), ensure_ascii=False) if args.json else printable(str(report)))
    logger.info("To ask it something: %s", _question(report.output))
    return 0


def _question(model: Path) -> str:
    """How to ask a merged model, in one line: by its template where it has one, for the most likely answer."""
    has_template = (model / "chat_template.jinja").is_file()
    prompt, turn = ('[{"role": "user", "content": "…"}]', '[-1]["content"]') if has_template else ('"…"', "")
    return (
        f'transformers.pipeline("text-generation", "{model}")({prompt}, do_sample=False, max_new_tokens=200)'
        f'[0]["generated_text"]{turn}'
    )


def _print_parity(args: argparse.Namespace, adapters: list[Path | str], output: Path, dtype: str) -> int:
    from hf_recipes.core.tables import render_table
    from hf_recipes.export.parity_merge import compare_parity
    from hf_recipes.export.proofs.logits import parity_table

    if len(adapters) > 1:
        raise UserError("--parity compares base values for one adapter: give one.")
    result = compare_parity(
        adapters[0],
        base=args.base,
        beside=output,
        dtype=dtype,
        quantization=args.quantization,
        allow_other_base=args.allow_other_base,
        **_samples(adapters),
    )
    headers, *rows = parity_table(result)
    print(json.dumps(result, ensure_ascii=False) if args.json else printable(render_table(headers, rows)))
    return 0


def _samples(adapters: list[Path | str]) -> dict[str, Any]:
    """Samples of the data of the run that an adapter lies in, for the proof by logits."""
    directory = Path(adapters[0]).absolute().parent
    if not is_run(directory):
        return {}
    from hf_recipes.export.bases.identity import recorded_run
    from hf_recipes.training.proof_rows import proof_rows

    recorded_run(Path(adapters[0]))  # a damaged record is told as such
    samples = proof_rows(directory)
    for notice in samples.notices:
        logger.info("%s", notice)
    return {"rows": samples.rows, "labels": samples.labels, "prompts": samples.prompts}


def _adapters_and_output(directories: list[str], dtype: str) -> tuple[list[Path | str], Path]:
    """What to merge and where to by default, from runs, adapters, names on the Hub, or nothing."""
    if not directories:
        found = find_run(None)
        logger.info("Merging the adapter of %s.", found.path)
        adapter, output = _of_run(found, dtype)
        return [adapter], output
    pairs = [_adapter_and_output(directory, dtype) for directory in directories]
    return [adapter for adapter, _ in pairs], pairs[0][1]


def _adapter_and_output(directory: str, dtype: str) -> tuple[Path | str, Path]:
    path = Path(directory)
    if (path / "adapter_config.json").is_file():
        plain = path.resolve()
        return path, plain.with_name(f"{plain.name}-merged-{dtype}")
    if is_run(path):
        return _of_run(RunDirectory(path), dtype)
    if path.is_dir():
        inside = sorted(file.parent for file in path.glob("*/adapter_config.json"))
        way_out = f"give one in it, such as '{inside[-1]}'" if inside else "give one of them"
        raise UserError(f"'{path}' is neither a run (run.json) nor an adapter (adapter_config.json): {way_out}.")
    from hf_recipes.export.bases.hub import split_name

    name = split_name(directory)
    if not path.exists() and name and "/" in name[0]:
        return directory, Path(f"{name[0].rpartition('/')[2]}-merged-{dtype}")
    raise UserError(f"'{path}' does not exist: give a run, or the directory of an adapter.")


def _of_run(run_directory: RunDirectory, dtype: str) -> tuple[Path, Path]:
    result = run_directory.result
    if result == run_directory.model:
        raise UserError(
            f"{run_directory.path} trained the model's own weights: {result} is the model already, nothing to merge."
        )
    return result, run_directory.merged(dtype)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers: write, for example, 0.7,0.3") from None
