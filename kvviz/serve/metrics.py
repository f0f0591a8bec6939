"""Metrics: what a run of the engine took, step by step and request by request."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import NamedTuple

from kvviz.cache.pages import PagePool
from kvviz.serve.request import Request


class Step(NamedTuple):
    """One call of the model. Counts of samples, tokens and pages after it; seconds of the engine's clock."""

    number: int
    seconds: float
    running: int
    waiting: int
    prefill: int  # tokens of prompts, and of preempted samples, that were read
    decode: int  # samples that read their newest token
    used: int  # pages in tables during the step
    stored: int  # tokens in them, a shared one counted once
    waste: float  # share of their slots that hold no token
    preempted: int
    finished: tuple[Request, ...]


@dataclass
class Metrics:
    steps: list[Step] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    hit_tokens: int = 0  # of prompts, found in pages
    preemptions: int = 0
    recomputed_tokens: int = 0  # that were computed, lost their pages, and were not found again

    @property
    def seconds(self) -> float:
        """Spent in steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def output_tokens(self) -> int:
        return sum(len(output) for request in self.requests for output in request.outputs)

    @property
    def throughput(self) -> float:
        """Output tokens a second of all requests together."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def time_to_first_token(self) -> float | None:
        """Median over requests, in seconds."""
        return _median(request.time_to_first_token for request in self.requests)

    @property
    def time_per_output_token(self) -> float | None:
        """Median over requests, in seconds."""
        return _median(request.time_per_output_token for request in self.requests)

    @property
    def peak_used(self) -> int:
        return max((step.used for step in self.steps), default=0)

    @property
    def waste(self) -> float:
        """Mean over steps of the share of used slots that hold no token."""
        return statistics.fmean(step.waste for step in self.steps) if self.steps else 0.0

    def __str__(self) -> str:
        prompts = sum(len(request.prompt) for request in self.requests)
        cancelled = sum(request.cancelled for request in self.requests)
        done = sum(request.done for request in self.requests) - cancelled
        more = f", {cancelled:,} cancelled" if cancelled else ""

        def ms(seconds: float | None) -> str:
            return "–" if seconds is None else f"{seconds * 1e3:,.1f} ms"

        return "\n".join(
            [
                f"{done:,} of {len(self.requests):,} requests done{more} in {len(self.steps):,} steps, {self.seconds:,.2f} s",
                f"{prompts:,} prompt tokens, {self.hit_tokens:,} of them found in pages; {self.output_tokens:,} generated",
                f"{self.throughput:,.1f} tokens a second",
                f"time to first token {ms(self.time_to_first_token)}, per output token {ms(self.time_per_output_token)}",
                f"{self.peak_used:,} pages in use at most, waste {self.waste:.1%}",
                f"{self.preemptions:,} preemptions, {self.recomputed_tokens:,} tokens computed again",
            ]
        )


def stored_tokens(pool: PagePool) -> int:
    """Tokens in the pages of all tables, a shared one counted once."""
    size = pool.page_size
    filled: dict[int, int] = {}
    for table in pool.tables.values():
        for index, page in table.entries:
            filled[page] = max(filled.get(page, 0), min(size, table.seen - index * size))
    return sum(filled.values())


def _median(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return statistics.median(known) if known else None
