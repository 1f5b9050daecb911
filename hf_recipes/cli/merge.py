"""`hf-recipes merge`: an adapter into its base, tensor by tensor, proven."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hf_recipes.core.dtypes import SHORT_NAMES, canonical_dtype_name
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory, find_run, is_run

HELP = "merge a LoRA adapter into its 16-bit base, tensor by tensor, and prove the result"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="a run, an adapter or a checkpoint (default: here, else the newest run)",
    )
    parser.add_argument("--to", required=True, metavar="DTYPE", help="bf16, fp16 or fp32, for every tensor")
    parser.add_argument("--output", metavar="DIR", help="default: RUN/merged-DTYPE, or ADAPTER-merged-DTYPE beside it")
    parser.add_argument("--base", metavar="PATH", help="the base model, in place of the one the adapter names")
    parser.add_argument(
        "--allow-other-base",
        action="store_true",
        help="merge though the base is not the one recorded when the adapter was trained",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing output, once the new one is whole"
    )
    parser.add_argument(
        "--proof",
        choices=("tensors", "logits", "off"),
        default="tensors",
        help="tensors: read all files again and recompute (default); logits: also compare with the live adapter",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Merge, print the report and return 0; what goes wrong is raised."""
    dtype = canonical_dtype_name(args.to, "--to")
    if dtype not in SHORT_NAMES:
        raise UserError(f"--to: '{args.to}' names no dtype to merge to: write bf16, fp16 or fp32.")
    adapter, default_output = _adapter_and_output(args.directory, SHORT_NAMES[dtype])

    from hf_recipes.export.merge import merge_adapter

    report = merge_adapter(
        adapter,
        base=args.base,
        output=Path(args.output) if args.output else default_output,
        dtype=dtype,
        proof=args.proof,
        overwrite=args.overwrite,
        allow_other_base=args.allow_other_base,
    )
    print(json.dumps(report.to_dict(), ensure_ascii=False) if args.json else "\n".join(report.lines()))
    return 0


def _adapter_and_output(directory: str | None, dtype: str) -> tuple[Path, Path]:
    """What to merge and where to by default, from a run, an adapter directory, or nothing."""
    if directory is None:
        run_directory = find_run(None)
        logger.info("Merging the adapter of %s.", run_directory.path)
        return _of_run(run_directory, dtype)
    path = Path(directory)
    if (path / "adapter_config.json").is_file():
        plain = path.resolve()
        return path, plain.with_name(f"{plain.name}-merged-{dtype}")
    if is_run(path):
        return _of_run(RunDirectory(path), dtype)
    if not path.is_dir():
        raise UserError(f"'{path}' does not exist: give a run, or the directory of an adapter.")
    raise UserError(f"'{path}' is neither a run (run.json) nor an adapter (adapter_config.json): give one of them.")


def _of_run(run_directory: RunDirectory, dtype: str) -> tuple[Path, Path]:
    result = run_directory.result
    if result == run_directory.model:
        raise UserError(
            f"{run_directory.path} trained the model's own weights: {result} is the model already, nothing to merge."
        )
    return result, run_directory.merged(dtype)
