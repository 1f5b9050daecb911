"""``on_finish: COMMAND``: what is run once when a run has succeeded, such as shutting a rented machine down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hf_recipes.core.log import logger

RUN_DIR = "RUN_DIR"


def run_on_finish(command: str | bool | None, run_directory: Path, code: int) -> None:
    """Run the command through the shell if there is one and the run ended with exit code 0, and tell how it ended.

    The launcher calls it once, after the ranks are gone; the run's own exit code stays what it is. The command has
    the run directory, absolute, in the environment as ``RUN_DIR``.

    Args:
        command: for the shell; off, None or empty: nothing is done.
        run_directory: of the run.
        code: the run's exit code; failures, alarms that stopped it and preemptions have others than 0.
    """
    text = _command(command)
    if code != 0 or not text:
        return
    environment = {**os.environ, RUN_DIR: str(run_directory.resolve())}
    logger.info("on_finish: %s", text)
    try:
        ended = subprocess.run(text, shell=True, env=environment, check=False).returncode
    except OSError as error:  # no shell
        logger.error("on_finish could not be run (%s); the run itself succeeded.", error.strerror or error)
        return
    if ended:
        logger.error("on_finish ended with exit code %d; the run itself succeeded.", ended)
    else:
        logger.info("on_finish ended well (exit code 0).")


def _command(value: str | bool | None) -> str:
    """A recipe's words for yes and no arrive as booleans; `true` is a command that does nothing."""
    if isinstance(value, bool):
        return "true" if value else ""
    return (value or "").strip()
