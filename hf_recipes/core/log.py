"""One logger for the package. Scale: right → silent, notable → info, likely mistake → warning, wrong → `UserError`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hf_recipes.core.printable import printable

logger = logging.getLogger("hf_recipes")


@contextmanager
def recorded() -> Iterator[list[tuple[int, str]]]:
    """Collect (level, message) of what is told within, so that it can be told again where the work is not repeated."""
    told: list[tuple[int, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append((record.levelno, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage())  # it may repeat what a stranger's file says
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"


def show_on_console(process_rank: int = 0) -> None:
    """Send the package's messages to stderr; ranks above 0 stay silent below errors. Called by verbs, not on import."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO if process_rank == 0 else logging.ERROR)
    # On CPUs with bf16, bitsandbytes 0.50 advises a kernel from the Hub at every import, 4 bits or not.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # TRL 1.16 and PEFT 0.21 still use names that transformers 5 renames; nothing a user can mend. Gone when they are.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated", category=FutureWarning)
