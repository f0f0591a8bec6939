"""Every error that kvviz raises by itself. Each is also one of Python's own kinds, so `except ValueError` works."""


class KvvizError(Exception):
    """Base of them all."""


class InvalidRequest(KvvizError, ValueError):
    """A request that makes no sense: a negative size, an event beyond the end, an unknown setting."""


class UnknownAddress(KvvizError, ValueError):
    """A free of an address where no allocated block begins."""


class OutOfMemory(KvvizError, MemoryError):
    """The modelled device has no room, even after releasing what was cached."""


class PoolExhausted(KvvizError, MemoryError):
    """Too few free pages; the message says how many are missing and what to raise. Nothing has changed."""


class SequenceFreed(KvvizError, RuntimeError):
    """Tokens for a sequence that was freed."""


class UnknownPage(KvvizError, ValueError):
    """A page that is free, or that this pool does not have."""


class CorruptCache(KvvizError, RuntimeError):
    """check() found pages, references, tables or tensors that contradict one another."""


class RankError(KvvizError, RuntimeError):
    """Ranks that decided differently, one that failed, or one that no longer answers."""


class RecordingError(KvvizError, RuntimeError):
    """record() cannot start or go on: one recording at a time, or the profiler is taken."""


class TraceError(KvvizError, ValueError):
    """A trace file that is damaged, or not one of ours."""


class InconsistentTrace(TraceError):
    """Events that contradict one another, so no true picture of them exists."""


class ViewError(KvvizError, ValueError):
    """A picture that cannot be drawn as asked."""


class ModelUnavailable(KvvizError, RuntimeError):
    """The model is neither in the cache nor to be had; the message names the ways out."""


class UnknownModel(KvvizError, ValueError):
    """No model of that name is known."""


class CorruptModel(KvvizError, RuntimeError):
    """The cached model cannot be read; the message names the folder to delete."""


def brief(value: object, most: int = 80) -> str:
    """What a caller gave, for the end of a message: one line, however long its repr is, or where it has none."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # of an int of thousands of digits
        text = "an int of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 1]}…"
