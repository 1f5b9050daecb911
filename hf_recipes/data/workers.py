"""Blocks of a source, encoded in this process or in several, with what is done already passed over."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from tqdm.auto import tqdm

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.encode import RowEncoder
from hf_recipes.data.reading.blocks import Block, Limits
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import source_blocks
from hf_recipes.data.store import BlockStore

_WAITING_PER_PROCESS = 2
LIMITS = Limits()  # where blocks end; a store's blocks are numbered by them


@dataclass(frozen=True)
class Shard:
    """Every `count`-th block, beginning with `index`: the part of the work that one machine takes."""

    index: int = 0
    count: int = 1

    def has(self, number: int) -> bool:
        """Whether block `number` belongs to this shard."""
        return number % self.count == self.index


@dataclass(frozen=True)
class _Work:
    store: BlockStore
    plan: RowEncoder

    def __call__(self, number: int, block: Block) -> None:
        self.store.write(number, *self.plan.encode(block))


def encode_blocks(
    spec: SourceSpec, store: BlockStore, plan: RowEncoder, num_proc: int, shard: Shard | None = None
) -> None:
    """Encode what `store` does not hold yet, in `num_proc` processes; when this returns, the shard is whole.

    Raises:
        UserError: what `plan` or the reading of a block raises; blocks done before stay done.
    """
    # On a terminal alone: a log has no use for it.
    blocks = tqdm(source_blocks(spec, limits=LIMITS), plan.label, unit=" blocks", disable=None, leave=False)
    todo = _Todo(blocks, store, shard or Shard())
    work = _Work(store, plan)
    if num_proc == 1:
        for number, block in todo:
            work(number, block)
    else:
        _in_processes(todo, work, num_proc)
    store.finish(todo.count)
    if todo.found:
        logger.info("%s: %d of %d blocks were prepared before.", plan.label, todo.found, todo.count)


class _Todo:
    """The blocks that are still to be encoded, with their numbers; counts all blocks on the way."""

    def __init__(self, blocks: Iterable[Block], store: BlockStore, shard: Shard) -> None:
        self.blocks, self.store, self.shard = blocks, store, shard
        self.count = self.found = 0

    def __iter__(self) -> Iterator[tuple[int, Block]]:
        for number, block in enumerate(self.blocks):
            self.count += 1
            if not self.shard.has(number):
                continue
            if self.store.is_done(number):
                self.found += 1
            else:
                yield number, block


def _in_processes(todo: _Todo, work: _Work, num_proc: int) -> None:
    """Hand out blocks as processes become free; no more than a few wait, so memory does not grow with the rows."""
    # Forked, like the processes of `datasets`: the tokenizer need not be pickled and imports are there already.
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    pool = ProcessPoolExecutor(num_proc, mp_context=context, initializer=_start, initargs=(work,))
    waiting: set[Future[None]] = set()
    try:
        for number, block in todo:
            waiting.add(pool.submit(_run, number, block))
            if len(waiting) >= num_proc * _WAITING_PER_PROCESS:
                waiting = _collect(waiting)
        while waiting:
            waiting = _collect(waiting)
    except BrokenProcessPool:
        raise UserError(
            "A process that prepares data was killed, most likely for memory: what is done is kept, so run the same "
            "command again with a smaller dataset_num_proc."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _collect(waiting: set[Future[None]]) -> set[Future[None]]:
    """Wait until one is done, raise what it raised, and return the others."""
    done, rest = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return rest


_work: _Work | None = None  # of this worker process


def _start(work: _Work) -> None:
    global _work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _work = work


def _run(number: int, block: Block) -> None:
    assert _work is not None
    _work(number, block)
