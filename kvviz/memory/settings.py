"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF spells them, and the rounding of a request that they decide.

Observed on torch 2.14's own allocator. Sizes in bytes unless a name says MiB.
"""

from __future__ import annotations

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

    As with PyTorch's own call at run time, what is not named goes back to its default; only large_segment_size_mb
    keeps the value of `base`. Raises InvalidRequest for an unknown name or an unusable value.
    """
    settings = Settings(large_segment=base.large_segment) if base else Settings()
    given: dict = {}
    for name, value in _pairs(conf):
        try:
            given |= _READERS[name](value)
        except KeyError:
            raise InvalidRequest(f"unknown allocator setting {name!r}; known: {', '.join(sorted(_READERS))}") from None
        except (ValueError, ZeroDivisionError):
            raise InvalidRequest(f"allocator setting {name} cannot be {value!r}") from None
    settings = replace(settings, **given)
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
    """(name, value) for each part; commas inside [ ] belong to the value."""
    depth, part, parts = 0, "", []
    for sign in conf:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += sign
    for text in (p.strip() for p in [*parts, part]):
        if not text:
            continue
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidRequest(f"allocator setting {text!r} is not of the form name:value")
        yield name.strip(), value.strip()


def _mebibytes(field: str) -> Reader:
    def read(value: str) -> dict:
        size = int(value)
        if size <= 0:
            raise ValueError
        return {field: size * MIB}

    return read


def _fraction(field: str) -> Reader:
    def read(value: str) -> dict:
        number = float(value)
        if not 0.0 < number <= 1.0:
            raise ValueError
        return {field: number}

    return read


def _truth(value: str) -> dict:
    if value not in ("True", "False"):
        raise ValueError
    return {"expandable": value == "True"}


def _roundup(value: str) -> dict:
    """`4`: for all sizes. `[32:4,128:2,>:8]`: by size in MiB; the first key fills the slots below it, `>` those above."""
    if not value.startswith("["):
        return {"roundup_divisions": (_power_of_two(value),) * ROUNDUP_SLOTS}
    slots, last = [0] * ROUNDUP_SLOTS, -1
    for k, entry in enumerate(value.strip("[]").split(",")):
        key, _, divisions = (x.strip() for x in entry.partition(":"))
        if key == ">":
            slots[last + 1 :] = [_power_of_two(divisions)] * (ROUNDUP_SLOTS - last - 1)
            break
        last = min(_power_of_two(key).bit_length() - 1, ROUNDUP_SLOTS - 1)
        slots[0 if k == 0 else last : last + 1] = [_power_of_two(divisions)] * (last + 1 if k == 0 else 1)
    return {"roundup_divisions": tuple(slots)}


def _power_of_two(text: str) -> int:
    number = int(text)
    if number <= 0 or number & (number - 1):
        raise ValueError
    return number


_READERS: dict[str, Reader] = {
    "expandable_segments": _truth,
    "max_split_size_mb": _mebibytes("max_split"),
    "large_segment_size_mb": _mebibytes("large_segment"),
    "max_non_split_rounding_mb": _mebibytes("max_non_split_rounding"),
    "roundup_power2_divisions": _roundup,
    "garbage_collection_threshold": _fraction("gc_threshold"),
    "per_process_memory_fraction": _fraction("memory_fraction"),
}
