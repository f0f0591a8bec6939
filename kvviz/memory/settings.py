"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF spells them, and the rounding of a request that they decide.

Observed on torch 2.14's own allocator. Sizes in bytes unless a name says MiB.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvviz.errors import InvalidRequest

MIB = 1 << 20
SMALLEST_BLOCK = 512
SMALL_REQUEST = 1 * MIB  # up to and including this, a request is served from the small pool
SMALL_SEGMENT = 2 * MIB
MIDDLE_REQUEST = 10 * MIB  # below this, a large request shares a segment of `large_segment` bytes
SEGMENT_ROUNDING = 2 * MIB  # larger ones get a segment of their own, rounded up to this
UNLIMITED = sys.maxsize
Reader = Callable[[str], dict]  # the text of a value -> the fields of Settings that it gives
ROUNDUP_SLOTS = 16  # roundup_power2_divisions: one entry for each power of two from 1 MiB


@dataclass(frozen=True)
class Settings:
    """Defaults are PyTorch's."""

    max_split: int = UNLIMITED  # blocks of this size and more are never split, and serve only requests as large
    large_segment: int = 20 * MIB
    max_non_split_rounding: int = 20 * MIB
    roundup_divisions: tuple[int, ...] = (0,) * ROUNDUP_SLOTS
    gc_threshold: float = 0.0
    memory_fraction: float = 1.0
    expandable: bool = False
    throw_on_oom: bool = False  # a segment that the device refuses ends it: nothing is released for another try

    def round_size(self, size: int) -> int:
        """The bytes that a request of `size` bytes is rounded to."""
        if size < SMALLEST_BLOCK:
            return SMALLEST_BLOCK
        divisions = self.roundup_divisions[min(max(size.bit_length() - 21, 0), ROUNDUP_SLOTS - 1)]
        if divisions > 1 and size > SMALLEST_BLOCK * divisions:
            if size & (size - 1) == 0:
                return size
            step = (1 << (size.bit_length() - 1)) // divisions
            return -(-size // step) * step
        return -(-size // SMALLEST_BLOCK) * SMALLEST_BLOCK

    def segment_size(self, rounded: int) -> int:
        """The bytes that are taken from the device when no cached block serves a request rounded to `rounded`."""
        if rounded <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if rounded < MIDDLE_REQUEST:
            return self.large_segment
        return -(-rounded // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


def parse(conf: str, base: Settings | None = None) -> Settings:
    """Settings from PYTORCH_CUDA_ALLOC_CONF's form, "name:value,name:value".

    base: the settings until now, of which PyTorch keeps two where they are not named, expandable_segments and
    large_segment_size_mb; everything else goes back to its default. Raises InvalidRequest for an unknown name or an
    unusable value.
    """
    settings = Settings(large_segment=base.large_segment, expandable=base.expandable) if base else Settings()
    given: dict = {}
    for name, value in _pairs(conf):
        try:
            given |= _READERS[name](value)
        except KeyError:
            raise InvalidRequest(f"unknown allocator setting {name!r}; known: {', '.join(sorted(_READERS))}") from None
        except ValueError as error:
            why = f": {error}" if str(error) else ""
            raise InvalidRequest(f"allocator setting {name} cannot be {value!r}{why}") from None
    settings = replace(settings, **given)
    if settings.throw_on_oom and settings.expandable:
        raise InvalidRequest("throw_on_cudamalloc_oom together with expandable_segments is not modelled")
    if "max_non_split_rounding" not in given:
        settings = replace(settings, max_non_split_rounding=settings.large_segment)
    for name in ("max_split", "max_non_split_rounding"):
        if getattr(settings, name) < settings.large_segment:
            raise InvalidRequest(
                f"{name}{'_size' * (name == 'max_split')}_mb is {getattr(settings, name) // MIB}, but must be at least "
                f"large_segment_size_mb, {settings.large_segment // MIB}"
            )
    return settings


def _pairs(conf: str) -> Iterator[tuple[str, str]]:
    """(name, value) for each part; spaces do not count, and commas inside [ ] belong to the value."""
    conf = "".join(conf.split())
    if not conf:
        return
    parts = re.findall(r"((?:\[[^\]]*\]?|[^,\[])*)(?:,|$)", conf)
    for part in parts[:-1]:  # the last one is what follows the end, or a last comma: nothing
        name, colon, value = part.partition(":")
        if not colon or (":" in value and not value.startswith("[")):
            raise InvalidRequest(f"allocator setting {part!r} is not of the form name:value")
        yield name, value


# Numbers are read as PyTorch reads them: what follows the digits is passed over, and a negative whole number counts
# down from 2 to the power of 64.


def _whole(text: str) -> int:
    digits = re.match(r"[+-]?[0-9]+", text)
    if digits is None or abs(int(digits[0])) >= 1 << 64:
        raise ValueError
    return int(digits[0]) % (1 << 64)


def _mebibytes(field: str, over: int = 0) -> Reader:
    def read(value: str) -> dict:
        size = _whole(value)
        if size <= over:
            raise ValueError(f"it must be over {over}")
        return {field: min(size, UNLIMITED // MIB) * MIB}

    return read


def _fraction(field: str, one: bool) -> Reader:
    def read(value: str) -> dict:
        number = re.match(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value)
        if number is None or not 0.0 < float(number[0]) <= 1.0 or (float(number[0]) == 1.0 and not one):
            raise ValueError(f"it must lie between 0 and 1{'' if one else ', 1 excluded'}")
        return {field: float(number[0])}

    return read


def _truth(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError("it must be True or False")
    return value == "True"


def _roundup(value: str) -> dict:
    """`4`: for all sizes. `[32:4,128:2,>:8]`: by size in MiB; the first key fills the slots below it, `>` those above."""
    if not value.startswith("["):
        return {"roundup_divisions": (_power_of_two(value),) * ROUNDUP_SLOTS}
    listed = re.fullmatch(r"\[([^\[\]]*)\]\w*", value)
    if listed is None:
        raise ValueError("the list does not end")
    slots, last, first = [0] * ROUNDUP_SLOTS, 0, True
    for entry in listed[1].removesuffix(",").split(",") if listed[1] else []:
        key, divisions = entry.split(":")
        count = 0 if _whole(divisions) == 0 else _power_of_two(divisions)
        if key == ">":
            slots[last + 1 :] = [count] * (ROUNDUP_SLOTS - last - 1)
            continue
        last = min(_power_of_two(key).bit_length() - 1, ROUNDUP_SLOTS - 1)
        start = 0 if first else last
        slots[start : last + 1] = [count] * (last + 1 - start)
        first = False
    return {"roundup_divisions": tuple(slots)}


def _power_of_two(text: str) -> int:
    number = _whole(text)
    if number == 0 or number & (number - 1):
        raise ValueError("it must be a power of two")
    return number


def _threads(value: str) -> None:
    if _power_of_two(value) > 128:
        raise ValueError("at most 128")


def _native(value: str) -> dict:
    if value != "native":
        raise ValueError("only the native backend is modelled")
    return {}


# Settings of PyTorch's that leave device memory as it is: checked, and without effect here.
def _no_effect(check: Callable[[str], object]) -> Reader:
    def read(value: str) -> dict:
        check(value)
        return {}

    return read


_READERS: dict[str, Reader] = {
    "expandable_segments": lambda value: {"expandable": _truth(value)},
    "max_split_size_mb": _mebibytes("max_split"),
    "large_segment_size_mb": _mebibytes("large_segment", over=MIDDLE_REQUEST // MIB),
    "max_non_split_rounding_mb": _mebibytes("max_non_split_rounding"),
    "roundup_power2_divisions": _roundup,
    "garbage_collection_threshold": _fraction("gc_threshold", one=False),
    "per_process_memory_fraction": _fraction("memory_fraction", one=True),
    "throw_on_cudamalloc_oom": lambda value: {"throw_on_oom": _truth(value)},
    "backend": _native,
    "release_lock_on_cudamalloc": _no_effect(_truth),
    "release_lock_on_hipmalloc": _no_effect(_truth),
    "graph_capture_record_stream_reuse": _no_effect(_truth),
    "pinned_use_cuda_host_register": _no_effect(_truth),
    "pinned_use_background_threads": _no_effect(_truth),
    "pinned_num_register_threads": _no_effect(_threads),
    "pinned_reserve_segment_size_mb": _no_effect(_whole),
    "pinned_max_round_threshold_mb": _no_effect(_whole),
    "pinned_max_cached_size_mb": _no_effect(_whole),
}
