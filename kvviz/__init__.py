"""kvviz: see the memory of language models. A real run goes in, a true moving picture of its memory comes out.

    with kvviz.record() as run:             # what a run does with memory …
        kvviz.decode(model, ids, 64, cache)
    kvviz.block_map(run.trace)              # … as a map to play and scrub

This file is the table of contents; each name's home is where to read on.
"""

from kvviz.errors import (
    CorruptModel,
    InconsistentTrace,
    InvalidRequest,
    KvvizError,
    ModelUnavailable,
    OutOfMemory,
    RecordingError,
    TraceError,
    UnknownAddress,
    UnknownModel,
    ViewError,
)
from kvviz.exercises import exercise
from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.compare import compare
from kvviz.memory.delta import delta
from kvviz.memory.file import load
from kvviz.memory.holders import holders
from kvviz.memory.record import record
from kvviz.memory.replay import replay, sweep
from kvviz.memory.report import Report
from kvviz.memory.state import MemoryState
from kvviz.memory.trace import Trace
from kvviz.models import decode, load_model
from kvviz.samples import sample
from kvviz.view import block_map, timeline

__version__ = "0.1.0"

__all__ = [
    "CachingAllocator",
    "CorruptModel",
    "InconsistentTrace",
    "InvalidRequest",
    "KvvizError",
    "MemoryState",
    "ModelUnavailable",
    "OutOfMemory",
    "RecordingError",
    "Report",
    "Trace",
    "TraceError",
    "UnknownAddress",
    "UnknownModel",
    "ViewError",
    "block_map",
    "compare",
    "decode",
    "delta",
    "exercise",
    "holders",
    "load",
    "load_model",
    "record",
    "replay",
    "sample",
    "sweep",
    "timeline",
]
