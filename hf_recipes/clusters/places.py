"""Where a run directory may lie, so that the next start of the job finds it on whatever machine that is."""

from __future__ import annotations

from pathlib import PurePosixPath

from hf_recipes.core.errors import UserError


def inside(mount: str, output_dir: str, what: str) -> str:
    """The run directory under `mount`: as it was given if it lies there, else (a relative one) placed there.

    Args:
        mount: what outlives the machines.
        output_dir: as the recipe or the command line has it.
        what: the mount in words.

    Raises:
        UserError: it lies on a machine's own disk.
    """
    path = PurePosixPath(output_dir)
    if not path.is_absolute():
        name = path.relative_to("runs") if path.parts[:1] == ("runs",) and len(path.parts) > 1 else path
        path = PurePosixPath(mount) / (name if mount.endswith("/runs") else path)
    if ".." in path.parts or PurePosixPath(mount) not in path.parents:
        raise UserError(
            f"output_dir: '{output_dir}' does not lie in {mount}, {what}, and is lost with its machine: write "
            f"--output_dir {mount}/{path.name}."
        )
    return str(path)


def shared(output_dir: str) -> str:
    """Give back a run directory that every node of a Ray cluster can mean the same by.

    Raises:
        UserError: it is relative, which begins in a copy of the job's files that goes with the job.
    """
    if not PurePosixPath(output_dir).is_absolute():
        raise UserError(
            f"output_dir: '{output_dir}' would begin in a copy of the job's files, which goes with the job: write "
            "--output_dir with an absolute path on a file system that all nodes share."
        )
    return output_dir
