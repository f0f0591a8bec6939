"""Request: what was asked for. Sample: one continuation of its prompt, which is what gets pages and is scheduled."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvviz.cache.table import PageTable


@dataclass(eq=False)
class Request:
    """`n` continuations of one prompt, of at most max_new_tokens each. Times are the engine's clock, in seconds.

    bound: the step in which it is finished at the latest, see Engine.add.
    """

    number: int
    prompt: list[int]
    max_new_tokens: int
    n: int = 1
    stop: int | None = None  # a token that ends a sample; it is part of the output
    samples: list[Sample] = field(default_factory=list)
    added: float = 0.0
    first_token: float | None = None
    finished: float | None = None
    bound: int = 0
    finished_step: int | None = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.samples.append(Sample(self, 0, list(self.prompt)))  # the others are forked from it after the prompt

    def __repr__(self) -> str:
        count = ", ".join(f"{len(sample.output)}" for sample in self.samples)
        return f"<Request {self.number}: {len(self.prompt):,} + {count} of {self.max_new_tokens:,} tokens>"

    @property
    def outputs(self) -> list[list[int]]:
        """The generated token ids of each sample, so far."""
        return [sample.output for sample in self.samples]

    @property
    def done(self) -> bool:
        return self.finished is not None

    @property
    def most_stored(self) -> int:
        """Tokens that a sample stores at most: the last one is returned, but not read again."""
        return len(self.prompt) + self.max_new_tokens - 1

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from add() to the first token."""
        return None if self.first_token is None else self.first_token - self.added

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds from one token to the next, on average, once the first is there; None for a single token."""
        steps = max(len(sample.output) for sample in self.samples) - 1
        if self.finished is None or self.first_token is None or not steps:
            return None
        return (self.finished - self.first_token) / steps


@dataclass(eq=False)
class Sample:
    """One continuation. tokens: prompt and output; the first `computed` of them have keys and values in pages.

    table: None while it waits. A preempted sample loses its pages and keeps its tokens, so that what it generated is
    read like a prompt when its turn comes again.
    """

    request: Request
    index: int
    tokens: list[int]
    table: PageTable | None = None
    slot: int = -1  # its place among those that run: where in the pool it begins
    preempted: int = 0  # times
    lost: int = 0  # tokens that were computed when it was preempted last

    def __repr__(self) -> str:
        state = "waits" if self.table is None else f"{self.computed:,} computed"
        return f"<Sample {self.request.number}.{self.index}: {len(self.tokens):,} tokens, {state}>"

    @property
    def order(self) -> tuple[int, int]:
        """Age: the lower came first."""
        return self.request.number, self.index

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def computed(self) -> int:
        return self.table.seen if self.table else 0

    @property
    def remaining(self) -> int:
        """Known tokens that the model has not read: 1 in decode, more in prefill."""
        return len(self.tokens) - self.computed

    @property
    def width(self) -> int:
        """Samples that this one stands for: all n as long as the prompt is being read."""
        return self.request.n - len(self.request.samples) + 1 if self.index == 0 else 1

    @property
    def ended(self) -> bool:
        """It has all tokens it was asked for, or the stop token."""
        count = len(self.tokens) - len(self.request.prompt)
        return count >= self.request.max_new_tokens or (count > 0 and self.tokens[-1] == self.request.stop)
