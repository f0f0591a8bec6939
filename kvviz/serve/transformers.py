"""transformers' own continuous batching, with its blocks recorded: to be seen beside the engine's pages.

    with kvviz.serve.record_batching(model) as run:
        model.generate_batch(prompts, max_new_tokens=32)
    kvviz.page_map(run.log)

A block is there what a page is here: the keys and values of some tokens, 256 as a rule, in all layers. Its tables are
looked at whenever a batch is ready; what has changed since the one before is written down.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvviz.cache.attach import text_config
from kvviz.cache.generate import windows_of
from kvviz.cache.pagelog import PageAction, PageLog, PoolInfo
from kvviz.errors import InvalidRequest, RecordingError
from kvviz.origin import of_pages


class Table(NamedTuple):
    """One request: its number in the log, its pages in logical order, and tokens."""

    sequence: int
    pages: list[int]
    tokens: int


class BatchingRecording:
    """log: all blocks of a run of generate_batch. One pool for each call, as each takes its memory anew."""

    def __init__(self, log: PageLog | None):
        self.log = PageLog.of(log)
        self.fault: Exception | None = None
        self._pool = -1
        self._tables: dict[str, Table] = {}  # by their names of requests
        self._of: Any = lambda: None  # the batch processor that is looked at, as long as it lives

    def look(self, processor: Any) -> None:
        """Write down what is not as it was. Their loop must not stop because of what cannot be read: see `fault`."""
        if self.fault is None:
            try:
                self._look(processor)
            except Exception as error:
                self.fault = error

    def end(self) -> None:
        """The last look. A run that is over has given its memory back, and with it all blocks."""
        processor = self._of()
        if processor is not None:
            self.look(processor)
        elif self._tables:
            self._change({}, set())

    def _look(self, processor: Any) -> None:
        (blocks,) = processor.cache.cache_allocators.values()  # one: all layers are alike
        if self._of() is not processor:
            self.end()
            self._of = weakref.ref(processor)
            self._pool = self._add_pool(processor.cache, blocks)
        first = processor.cache.pool.num_reserved_sectors * blocks.blocks_per_sector  # those before are never given out
        tokens = {name: state.position_offset for name, state in processor.scheduler.active_requests.items()}
        now = {
            name: ([block - first for block in table], tokens.get(name, 0))
            for name, table in blocks.block_table.items()
            if table
        }
        self._change(now, {block - first for block in blocks.ledger.block_to_hash})

    def _add_pool(self, cache: Any, blocks: Any) -> int:
        if not self.log.pools:
            self.log.origin = f"generate_batch of transformers, {of_pages(cache.device)}"
        size = blocks.tokens_per_page
        return self.log.add_pool(
            PoolInfo(
                "transformers' blocks", blocks.num_blocks, size, blocks.bytes_per_block // size, blocks.pages_per_block
            )
        )

    def _change(self, now: dict[str, tuple[list[int], int]], known: set[int]) -> None:
        """known: blocks that are found by what is in them, so who gets one of these did not write it."""
        log, pool = self.log, self._pool
        for name, old in list(self._tables.items()):
            pages, tokens = now.get(name, ([], 0))
            over = name not in now or tokens < old.tokens  # fewer: it was preempted, and let in again
            for index in reversed(range(len(old.pages))):
                if over or pages[index : index + 1] != [old.pages[index]]:
                    log.add(PageAction.RELEASE, pool, old.pages[index], old.sequence, index)
            if over:
                log.add(PageAction.END, pool, sequence=old.sequence)
                del self._tables[name]
        for name, (pages, tokens) in now.items():
            old = self._tables.get(name) or Table(log.begin(pool), [], 0)
            for index, page in enumerate(pages):
                if old.pages[index : index + 1] != [page]:
                    action = PageAction.SHARE if page in known else PageAction.ALLOCATE
                    log.add(action, pool, page, old.sequence, index)
                reached = min(tokens, (index + 1) * log.pools[pool].page_size)
                if reached > old.tokens and page in known:
                    log.add(PageAction.LENGTH, pool, sequence=old.sequence, tokens=reached)
                elif reached > max(old.tokens, index * log.pools[pool].page_size):
                    log.add(PageAction.WRITE, pool, page, old.sequence, index, reached)
            self._tables[name] = Table(old.sequence, pages, tokens)


@contextlib.contextmanager
def record_batching(model: Any, log: PageLog | None = None) -> Iterator[BatchingRecording]:
    """Record the blocks of model.generate_batch, or of its continuous batching manager, as long as the block runs.

    log: what to write into, such as an engine's, so that one picture shows both; None: a new one.

    Raises InvalidRequest for a model with windows, whose blocks are rings and have no logical order, and RecordingError
    where this release of transformers has no continuous batching, or keeps its tables in a way not known here.
    """
    import transformers

    config, version = text_config(model), transformers.__version__
    if any(window is not None for window in windows_of(config)):
        raise InvalidRequest(f"{type(model).__name__} has windows: only full attention is recorded")
    try:
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor as Processor
    except ImportError as error:
        raise RecordingError(f"transformers {version} has no continuous batching") from error
    recording, prepare = BatchingRecording(log), Processor.prepare_next_batch

    @functools.wraps(prepare)
    def prepare_and_look(processor: Any) -> bool:
        found = prepare(processor)
        if processor.config is config:
            recording.look(processor)
        return found

    Processor.prepare_next_batch = prepare_and_look
    try:
        yield recording
    finally:
        Processor.prepare_next_batch = prepare
        recording.end()
    if recording.fault is not None:
        why = f"{type(recording.fault).__name__}: {recording.fault}"
        raise RecordingError(f"transformers {version} keeps its blocks otherwise ({why})") from recording.fault
