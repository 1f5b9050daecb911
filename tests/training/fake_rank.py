"""Run as ``python -m fake_rank DIRECTORY WAY`` by `test_rank_group.py`: a rank that writes down which signals came."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main(directory: Path, way: str) -> None:
    heard = []
    for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
        signal.signal(getattr(signal, name), lambda number, _frame: heard.append(signal.Signals(number).name))
    (directory / "ready").write_text(str(os.getpid()))
    while not heard or way == "stubborn":
        time.sleep(0.05)
    time.sleep(0.3)  # the save
    (directory / "heard").write_text(" ".join(heard))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
