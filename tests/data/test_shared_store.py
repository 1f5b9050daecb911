"""One prepared source in a directory that several machines write at once, such as a home on a network."""

from __future__ import annotations

import threading

import pyarrow as pa

from hf_recipes.data.ledger import Ledger
from hf_recipes.data.store import SCHEMA, BlockAccount, BlockStore


def test_machines_whose_process_ids_are_the_same_write_one_store(tmp_path, monkeypatch):
    """Containers number their processes anew. Both are in the middle of the same block before either ends it."""
    monkeypatch.setattr("os.getpid", lambda: 2)
    both = threading.Barrier(2, timeout=30)
    failed: list[BaseException] = []

    def batches():
        both.wait()
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)
        both.wait()

    def write():
        try:
            BlockStore(tmp_path).write(0, batches(), BlockAccount(Ledger("rows")))
        except BaseException as error:
            failed.append(error)

    machines = [threading.Thread(target=write) for _ in range(2)]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join()
    assert failed == []
    assert BlockStore(tmp_path).is_done(0)
    assert not [left for left in tmp_path.iterdir() if left.suffix == ".tmp"]
