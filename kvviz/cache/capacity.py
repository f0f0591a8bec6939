"""Capacity: how many pages a pool gets, from whichever of tokens, pages and bytes was named."""

from __future__ import annotations

from dataclasses import dataclass

from kvviz.counts import positive
from kvviz.errors import InvalidRequest

USUAL_TOKENS = 8192  # of each sequence, where nobody says


def pages_for(first: int, end: int, page_size: int) -> int:
    """Pages that tokens number first … end - 1 lie in."""
    return -(-end // page_size) - first // page_size if end > first else 0


def most_pages(stored: int, page_size: int) -> int:
    """Pages that so many tokens lie in at most, wherever the first of them is in its page."""
    return -(-(stored - 1) // page_size) + 1


@dataclass
class Capacity:
    """One of three: tokens of each sequence, pages of all, bytes of all. With none of them USUAL_TOKENS tokens."""

    tokens: int | None = None
    pages: int | None = None
    max_bytes: int | None = None
    wish: str = ""  # what the user named, where this is a share of it

    def __post_init__(self) -> None:
        named = [name for name in ("tokens", "pages", "max_bytes") if getattr(self, name) is not None]
        for name in named:
            setattr(self, name, positive(name, getattr(self, name)))
        if len(named) > 1:
            raise InvalidRequest(f"give one of tokens, pages and max_bytes, not {' and '.join(named)}")
        self.named = named[0] if named else "tokens"

    @property
    def unsaid(self) -> bool:
        return self.tokens is None and self.pages is None and self.max_bytes is None

    def of_pool(self, page_size: int, page_bytes: int, batch: int, stored: int | None) -> int:
        """Pages. stored: tokens of a sequence that are stored at most, None: all."""
        if self.pages is not None:
            return self.pages
        if self.max_bytes is not None:
            if self.max_bytes < page_bytes:
                raise InvalidRequest(
                    f"max_bytes={self.max_bytes:,} is less than one page, which takes {page_bytes:,} bytes"
                )
            return self.max_bytes // page_bytes
        each = -(-(self.tokens or USUAL_TOKENS) // page_size)
        return batch * (each if stored is None else min(each, most_pages(stored, page_size)))

    def advice(self) -> str:
        """What to raise."""
        if self.wish:
            return f"raise {self.wish}"
        now = getattr(self, self.named)
        return (
            f"raise {self.named}, now {now:,}"
            if now
            else f"name more than the usual {USUAL_TOKENS:,} tokens by tokens="
        )
