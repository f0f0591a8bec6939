"""options: what to change so that a plan fits, smallest changes first."""

from __future__ import annotations

import html
import itertools
from dataclasses import dataclass, replace
from typing import Any

from kvviz.errors import InvalidRequest
from kvviz.memory.report import bytes_text
from kvviz.sizing.plan import Plan
from kvviz.sizing.precision import KV_SCHEMES, WEIGHT_SCHEMES

STEPS = ("bf16", "int8", "int4")  # each about half of the one before
SMALLEST_WINDOW = 256


@dataclass(frozen=True)
class Option:
    """A plan, and what was changed to come to it: by how many steps for weights, cache, ranks and window.

    A step halves something: bits of the weights, bits of the cache, the share of a device, the window.
    """

    plan: Plan
    steps: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def changes(self) -> list[str]:
        """In words; empty: nothing is changed."""
        plan = self.plan
        names = (
            f"{plan.weights.name} weights",
            f"{plan.kv.name} cache",
            f"{plan.shards} ranks",
            f"window {plan.window or 0:,}",
        )
        return [name for name, step in zip(names, self.steps) if step]

    @property
    def size(self) -> tuple[int, int, int]:
        """How much it changes: kinds of change first, a window last since it changes what the model sees, then steps."""
        return sum(map(bool, self.steps)), bool(self.steps[3]), sum(self.steps)

    @property
    def text(self) -> str:
        plan = self.plan
        weights, cache, total = plan.bytes_of("weights"), plan.bytes_of("cache"), plan.bytes
        figures = (
            f"{bytes_text(weights)} weights + {bytes_text(cache)} cache + {bytes_text(total - weights - cache)} workspace "
            f"= {bytes_text(total)}"
        )
        free = plan.free or 0
        found = f"fits, {bytes_text(free)} left" if plan.fits else f"does not fit, {bytes_text(-free)} missing"
        return f"{', '.join(self._named())}: {figures}: {found}"

    def _named(self) -> list[str]:
        """Weights and cache always, the others where they were changed."""
        return [f"{self.plan.weights.name} weights", f"{self.plan.kv.name} cache"] + [
            change for change in self.changes if change.endswith("ranks") or change.startswith("window")
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it in plain types."""
        return {"changes": self.changes, "text": self.text, "plan": self.plan.to_json()}


class Options(list[Option]):
    """Those that fit, smallest change first; a list that can be read as text."""

    @property
    def text(self) -> str:
        """A line each."""
        return "\n".join(option.text for option in self) or "nothing here fits: fewer tokens, or a larger device"

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return (
            f"<ol>{''.join(f'<li>{html.escape(option.text)}</li>' for option in self) or html.escape(self.text)}</ol>"
        )

    def to_json(self) -> list[dict[str, Any]]:
        """All of it in plain types."""
        return [option.to_json() for option in self]


def options(plan: Plan) -> Options:
    """The changes of weights, cache, ranks and window that make the plan's tokens fit, smallest first.

    An option that goes at least as far as another one in every way is left out: 4-bit weights, where 8 bits do.
    A plan that fits has one option, without changes.
    """
    if plan.memory is None or not plan.tokens:
        raise InvalidRequest("options need memory and tokens: plan(config, memory='24GiB', tokens=32_768)")
    found = [option for option in _all(plan) if option.plan.fits]
    found = [option for option in found if not any(_less(other, option) for other in found)]
    return Options(sorted(found, key=lambda option: (option.size, -(option.plan.free or 0))))


def combinations(plan: Plan) -> list[Option]:
    """Weights and cache in fewer bits, ranks and window as they are: whether they fit or not."""
    return [
        Option(replace(plan, weights=weights, kv=kv), (i, j, 0, 0))
        for i, weights in enumerate(_ladder(plan.weights, WEIGHT_SCHEMES))
        for j, kv in enumerate(_ladder(plan.kv, KV_SCHEMES))
    ]


def _all(plan: Plan) -> list[Option]:
    windows = [plan.window, *_windows(plan)]
    return [
        Option(replace(base.plan, shards=plan.shards << rank, window=window), (*base.steps[:2], rank, step))
        for base, rank, (step, window) in itertools.product(combinations(plan), range(4), enumerate(windows))
    ]


def _windows(plan: Plan) -> list[int]:
    """Powers of two below the tokens, and below the window that there is."""
    top = min(plan.tokens, plan.window or plan.tokens)
    return [1 << bit for bit in range(top.bit_length(), -1, -1) if SMALLEST_WINDOW <= 1 << bit < top]


def _ladder(first: Any, schemes: dict[str, Any]) -> list[Any]:
    """The scheme that there is, and those of fewer bits."""
    return [
        first,
        *(schemes[name] for name in STEPS if schemes[name].bits < first.bits and schemes[name].name != first.name),
    ]


def _less(one: Option, other: Option) -> bool:
    """It goes nowhere farther, and somewhere less far."""
    return one.steps != other.steps and all(a <= b for a, b in zip(one.steps, other.steps))
