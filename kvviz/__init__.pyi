"""What kvviz/__init__.py imports on demand, for type checkers and editors."""

from kvviz import serve
from kvviz.cache.attach import attach
from kvviz.cache.contiguous import ConcatCache, RingCache, ShiftingCache, SliceCache
from kvviz.cache.generate import paged_cache
from kvviz.cache.paged import PagedKVCache
from kvviz.cache.pagelog import PageLog
from kvviz.cache.pages import PagePool
from kvviz.cache.quantized import QuantizedPagedKVCache
from kvviz.cache.table import PageTable
from kvviz.errors import (
    CorruptCache,
    CorruptModel,
    InconsistentTrace,
    InvalidRequest,
    KvvizError,
    ModelUnavailable,
    OutOfMemory,
    PoolExhausted,
    RankError,
    RecordingError,
    SequenceFreed,
    TraceError,
    UnknownAddress,
    UnknownModel,
    UnknownPage,
    ViewError,
)
from kvviz.exercises import exercise
from kvviz.explore.allocator import AllocatorExplorer
from kvviz.explore.pages import PageExplorer
from kvviz.explore.windows import WindowExplorer
from kvviz.ledger import Ledger
from kvviz.memory.allocator import CachingAllocator
from kvviz.memory.compare import compare
from kvviz.memory.delta import delta
from kvviz.memory.diagnose import diagnose
from kvviz.memory.file import load
from kvviz.memory.holders import holders
from kvviz.memory.record import record
from kvviz.memory.replay import replay, sweep
from kvviz.memory.report import Report
from kvviz.memory.state import MemoryState
from kvviz.memory.trace import Trace
from kvviz.models import decode, load_model
from kvviz.samples import sample
from kvviz.sizing import Plan, kv_bytes_per_token, plan
from kvviz.view import block_map, page_map, side_by_side, timeline

__version__: str

__all__ = [
    "AllocatorExplorer",
    "CachingAllocator",
    "ConcatCache",
    "CorruptCache",
    "CorruptModel",
    "InconsistentTrace",
    "InvalidRequest",
    "KvvizError",
    "Ledger",
    "MemoryState",
    "ModelUnavailable",
    "OutOfMemory",
    "PageExplorer",
    "PageLog",
    "PagePool",
    "PageTable",
    "PagedKVCache",
    "Plan",
    "PoolExhausted",
    "QuantizedPagedKVCache",
    "RankError",
    "RecordingError",
    "Report",
    "RingCache",
    "SequenceFreed",
    "ShiftingCache",
    "SliceCache",
    "Trace",
    "TraceError",
    "UnknownAddress",
    "UnknownModel",
    "UnknownPage",
    "ViewError",
    "WindowExplorer",
    "attach",
    "block_map",
    "compare",
    "decode",
    "delta",
    "diagnose",
    "exercise",
    "holders",
    "kv_bytes_per_token",
    "load",
    "load_model",
    "page_map",
    "paged_cache",
    "plan",
    "record",
    "replay",
    "sample",
    "serve",
    "side_by_side",
    "sweep",
    "timeline",
]
