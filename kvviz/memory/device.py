"""DeviceMemory: the device under the allocator, a capacity and a place for each segment.

A real driver chooses addresses by rules of its own; three simple ones stand in for it. The default, first-fit, takes
the lowest gap that is large enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from kvviz.errors import InvalidRequest

SEGMENTS_FROM = 0x600000000000
SLOT = 1 << 40  # address space of the one device
PAGE = 2 << 20  # the driver hands out whole pages of 2 MiB


class DeviceMemory:
    """`capacity` bytes; take() gives an address or None, give_back() returns what was taken there."""

    def __init__(self, capacity: int, placement: str = "first-fit"):
        if capacity <= 0:
            raise InvalidRequest(f"a device of {capacity} bytes")
        if placement not in ("first-fit", "bump", "down"):
            raise InvalidRequest(f"placement {placement!r}; known: first-fit, bump, down")
        self.capacity, self.used = int(capacity), 0
        self._placement = placement
        self._ranges: list[tuple[int, int]] = []  # (address, size), sorted, never overlapping
        self._bump = SEGMENTS_FROM

    def take(self, size: int) -> int | None:
        """An address for `size` bytes rounded up to pages; None where the capacity or the space does not allow it."""
        size = -(-size // PAGE) * PAGE
        if self.used + size > self.capacity:
            return None
        address = self._place(size)
        if address < SEGMENTS_FROM or address + size > SEGMENTS_FROM + SLOT:
            return None
        insort(self._ranges, (address, size))
        self.used += size
        return address

    def give_back(self, address: int) -> None:
        """Return the range that take() gave at `address`."""
        k = bisect_left(self._ranges, (address,))
        self.used -= self._ranges.pop(k)[1]

    def take_pages(self, size: int, page: int) -> bool:
        """Memory without a place of its own, `size` bytes in whole pages: all of it or nothing."""
        if self.used + -(-size // page) * page > self.capacity:
            return False
        self.used += size
        return True

    def give_back_pages(self, size: int) -> None:
        """Return what take_pages() gave."""
        self.used -= size

    def _place(self, size: int) -> int:
        if self._placement == "bump":
            self._bump += size
            return self._bump - size
        if self._placement == "down":
            end = SEGMENTS_FROM + SLOT - PAGE
            for address, taken in reversed(self._ranges):
                if end - (address + taken) >= size:
                    break
                end = address
            return end - size
        start = SEGMENTS_FROM
        for address, taken in self._ranges:
            if address - start >= size:
                break
            start = address + taken
        return start
