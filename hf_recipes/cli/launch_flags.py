"""The flags of `hf-recipes launch`, and which scheduler understands which."""

from __future__ import annotations

import argparse

from hf_recipes.clusters.texts import check_form, check_line
from hf_recipes.core.errors import UserError, nearest

# Flag → the schedulers it is for; the others refuse it.
OF_SOME: dict[str, tuple[str, ...]] = {
    "gpu": ("slurm", "k8s", "skypilot"),
    "time": ("slurm", "k8s"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "qos": ("slurm",),
    "constraint": ("slurm",),
    "image": ("k8s",),
    "pvc": ("k8s",),
    "namespace": ("k8s",),
    "kind": ("k8s",),
    "node-selector": ("k8s",),
    "memory": ("k8s",),
    "bucket": ("skypilot",),
    "spot": ("skypilot",),
    "cloud": ("skypilot",),
    "region": ("skypilot",),
    "package": ("skypilot",),
    "max-failures": ("k8s", "skypilot", "ray"),
}
FLAGS = ("config", "on", "write", "overwrite", "verb", "name", "nodes", "gpus", "cpus", *OF_SOME)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags, by whom they are for."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--on", metavar="WHERE", help="slurm, k8s, skypilot or ray")
    parser.add_argument("--write", metavar="DIR", help="where the files go")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument("--verb", default="sft", metavar="VERB", help="sft (default) or classify")
    parser.add_argument("--name", metavar="NAME", help="of the job (default: the recipe's)")
    parser.add_argument("--nodes", default="1", metavar="N", help="machines (default 1)")
    parser.add_argument("--gpus", default="1", metavar="N", help="devices of a machine (default 1; 0: on CPUs)")
    parser.add_argument("--cpus", metavar="N", help="CPU cores of a machine (default 8 for each device)")
    parser.add_argument("--gpu", metavar="KIND", help="kind of device: h100, a100-80g, l4 … (slurm: the site's name)")
    parser.add_argument("--time", metavar="TIME", help="slurm, k8s: limit of the job, as 24:00:00")
    parser.add_argument("--max-failures", metavar="N", help="k8s, skypilot, ray: failures until it gives up (3)")
    slurm = parser.add_argument_group("slurm, as in sbatch")
    for name in ("partition", "account", "qos", "constraint"):
        slurm.add_argument(f"--{name}", metavar="TEXT")
    kubernetes = parser.add_argument_group("k8s")
    kubernetes.add_argument("--image", metavar="IMAGE", help="a container image with hf_recipes installed")
    kubernetes.add_argument("--pvc", metavar="CLAIM", help="volume claim for runs and data, where paths begin")
    kubernetes.add_argument("--namespace", metavar="NAME")
    kubernetes.add_argument(
        "--kind", metavar="KIND", help="job (default on one node), pytorchjob (default on several), trainjob"
    )
    kubernetes.add_argument("--node-selector", metavar="KEY=VALUE", help="labels of the machines, comma between")
    kubernetes.add_argument("--memory", metavar="SIZE", help="of a machine, as 64Gi")
    sky = parser.add_argument_group("skypilot")
    sky.add_argument("--bucket", metavar="BUCKET", help="for runs: s3://…, gs://…, or a name to make one by")
    sky.add_argument("--spot", action="store_true", help="spot machines, replaced when they are taken away")
    sky.add_argument("--cloud", metavar="NAME", help="aws, gcp, azure … (default: the cheapest)")
    sky.add_argument("--region", metavar="NAME")
    sky.add_argument("--package", metavar="SPEC", help="what pip installs (default hf-recipes of this version)")


def check_flags(options: argparse.Namespace, targets: tuple[str, ...]) -> None:
    """Refuse what the scheduler does not understand.

    Raises:
        UserError: no scheduler, an unknown one, nowhere to write to, a flag of another scheduler, or a text that would
            not stay on its line or that the scheduler does not take.
    """
    if options.on is None:
        raise UserError(f"--on: say where it runs: {', '.join(targets)}.")
    if options.on not in targets:
        raise UserError(f"--on: '{options.on}' is none of {', '.join(targets)}{nearest(options.on, targets)}.")
    if not options.write:
        raise UserError("--write: name a directory for the files, which is made where it is not there.")
    for flag, takers in OF_SOME.items():
        if getattr(options, flag.replace("-", "_")) not in (None, False) and options.on not in takers:
            raise UserError(f"--{flag} is for --on {' or '.join(takers)}, and this is {options.on}: leave it out.")
    for flag in FLAGS:
        if isinstance(text := getattr(options, flag.replace("-", "_")), str):
            check_line(f"--{flag}", text)
            check_form(flag, text)


def whole_number(options: argparse.Namespace, flag: str, least: int = 1) -> int | None:
    """A flag's number; None where it is not given.

    Raises:
        UserError: it is no whole number from `least` up.
    """
    text = getattr(options, flag.replace("-", "_"))
    if text is None:
        return None
    digits = text.removeprefix("-") if least < 0 else text
    if not digits.isdecimal() or len(digits) > 5 or int(text) < least:
        raise UserError(f"--{flag}: '{text[:20]}' is no whole number from {least} to 99999.")
    return int(text)
