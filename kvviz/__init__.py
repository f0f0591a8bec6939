"""kvviz: see the memory of language models. A real run goes in, a true moving picture of its memory comes out.

    with kvviz.record() as run:             # what a run does with memory …
        kvviz.decode(model, ids, 64, cache)
    kvviz.block_map(run.trace)              # … as a map to play and scrub
    cache = kvviz.paged_cache(model)        # and the cure: the same tokens from pages
    model.generate(**inputs, cache=cache)
    kvviz.page_map(cache.log)

This file is the table of contents; each name's home is where to read on. A name is imported when it is first used,
since torch takes seconds, and a picture of a file does without it. __init__.pyi says the same to type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# module: the public names in it
_CONTENTS = {
    "cache.attach": "attach",
    "cache.contiguous": "ConcatCache RingCache ShiftingCache SliceCache",
    "cache.generate": "paged_cache",
    "cache.paged": "PagedKVCache",
    "cache.quantized": "QuantizedPagedKVCache",
    "cache.pagelog": "PageLog",
    "cache.pages": "PagePool",
    "cache.table": "PageTable",
    "errors": (
        "CorruptCache CorruptModel InconsistentTrace InvalidRequest KvvizError ModelUnavailable "
        "OutOfMemory PoolExhausted RankError RecordingError SequenceFreed TraceError UnknownAddress "
        "UnknownModel UnknownPage ViewError"
    ),
    "exercises": "exercise",
    "explore.allocator": "AllocatorExplorer",
    "explore.pages": "PageExplorer",
    "explore.windows": "WindowExplorer",
    "ledger": "Ledger",
    "memory.allocator": "CachingAllocator",
    "memory.compare": "compare",
    "memory.delta": "delta",
    "memory.diagnose": "diagnose",
    "memory.file": "load",
    "memory.holders": "holders",
    "memory.record": "record",
    "memory.replay": "replay sweep",
    "memory.report": "Report",
    "memory.state": "MemoryState",
    "memory.trace": "Trace",
    "models": "decode load_model",
    "samples": "sample",
    "sizing": "Plan kv_bytes_per_token plan",
    "view": "block_map page_map side_by_side timeline",
}
_PARTS = (
    "cache", "cli", "errors", "exercises", "explore", "ledger", "memory", "models", "samples", "serve", "sizing", "view"
)  # fmt: skip
_HOME = {name: module for module, names in _CONTENTS.items() for name in names.split()}

__all__ = sorted([*_HOME, "serve"])


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"kvviz.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'kvviz' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"kvviz.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
