"""plan: what a model needs on a device, term by term, and how many tokens fit."""

from __future__ import annotations

import html
import math
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvviz.errors import InvalidRequest
from kvviz.memory.report import bytes_text, count_text
from kvviz.sizing.precision import KV_SCHEMES, KVScheme, WeightScheme, kv_scheme, weight_scheme
from kvviz.sizing.shape import KVLayer, counted, kv_layers
from kvviz.sizing.terms import (
    Overhead,
    Parameters,
    Sizes,
    Term,
    cache_terms,
    count_parameters,
    sizes_of,
    weight_terms,
    workspace_terms,
)

if TYPE_CHECKING:
    from kvviz.sizing.options import Option, Options

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
         "TIB": 1 << 40}  # fmt: skip
MOST_SHARDS = 1 << 16
ENDLESS = 1 << 40  # tokens: what fits so many keeps a window or a state, and fits any number


@dataclass(frozen=True)
class Plan:
    """What one device (of `shards` alike, the one that has most) needs for `tokens` tokens of each of `batch` sequences.

    memory: bytes of a device, or None. Read .text, or .terms, .bytes, .fits, .free, .tokens_that_fit, .options().
    """

    sizes: Sizes
    layers: tuple[KVLayer, ...]
    parameters: Parameters
    memory: int | None
    tokens: int
    batch: int
    weights: WeightScheme
    kv: KVScheme
    page_size: int
    window: int | None
    shards: int
    overhead: Overhead
    said: str = field(default="", compare=False)  # the memory as it was named

    @property
    def terms(self) -> list[Term]:
        """(name, equation, bytes) of all that takes memory."""
        return self._terms(self.tokens)

    def _terms(self, tokens: int) -> list[Term]:
        rest_bytes = self.weights.rest_bits // 8
        return [
            *weight_terms(self.parameters, self.weights, self.shards),
            *cache_terms(self._seen(), self.kv, tokens, self.batch, self.page_size, self.shards),
            *workspace_terms(self.sizes, self.overhead, tokens * self.batch, rest_bytes, self.shards),
        ]

    def _seen(self) -> tuple[KVLayer, ...]:
        """The layers, with the window that was asked for where it is the smaller one."""
        if self.window is None:
            return self.layers
        return tuple(replace(layer, window=min(layer.window or self.window, self.window)) for layer in self.layers)

    def _bytes(self, tokens: int) -> int:
        return sum(term.bytes for term in self._terms(tokens))

    @property
    def bytes(self) -> int:
        """All terms together."""
        return self._bytes(self.tokens)

    def bytes_of(self, start: str) -> int:
        """Of the terms whose names begin so: "weights", "cache"."""
        return sum(term.bytes for term in self.terms if term.name.startswith(start))

    @property
    def free(self) -> int | None:
        """Bytes that are left, negative: that are missing; None where no memory was named."""
        return None if self.memory is None else self.memory - self.bytes

    @property
    def fits(self) -> bool | None:
        """None where no memory was named."""
        return None if self.free is None else self.free >= 0 and self.tokens > 0

    @property
    def tokens_that_fit(self) -> int | None:
        """The most tokens of each sequence; 0: not even one. None: no memory was named, or any number fits (see notes)."""
        if self.memory is None or self.endless:
            return None
        low, high = 0, 1
        while self._bytes(high) <= self.memory:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._bytes(middle) <= self.memory else (low, middle)
        return low

    @property
    def endless(self) -> bool:
        """No layer keeps all tokens, and what they keep fits."""
        return self.memory is not None and self._bytes(ENDLESS) <= self.memory

    def options(self) -> Options:
        """The changes that make `tokens` fit, smallest first (options.py). Raises InvalidRequest without memory."""
        from kvviz.sizing.options import options

        return options(self)

    def combinations(self) -> list[Option]:
        """Weights and cache in less and less bits, all else as it is: those that fit and those that do not."""
        from kvviz.sizing.options import combinations

        return combinations(self)

    @property
    def notes(self) -> list[str]:
        """What the terms take for granted, and what to mind."""
        from kvviz.sizing.notes import notes

        return notes(self)

    @property
    def title(self) -> str:
        sequences = "" if self.batch == 1 else f" for each of {self.batch:,} sequences"
        ranks = "" if self.shards == 1 else f", largest of {self.shards} ranks"
        count = sum(self.parameters)
        return (
            f"{self.sizes.name}, {count / 1e9:,.2f} billion parameters in {self.weights.name}: {count_text(self.tokens, 'token')}"
            f"{sequences} in {self.kv.name}{ranks}"
        )

    @property
    def verdict(self) -> str:
        """The sum, and whether it fits."""
        needed = f"{self.bytes:,} B ({bytes_text(self.bytes)})"
        if self.memory is None or self.free is None:
            return f"needed: {needed}"
        of = f"of {self.memory:,} B ({bytes_text(self.memory)})"
        if not self.fits:
            missing = f"{bytes_text(-self.free)} missing" if self.free < 0 else "no room for a token"
            found = f"does not fit: {needed} {of}, {missing}"
        else:
            found = f"fits: {needed} {of}, {bytes_text(self.free)} left"
        if self.endless:
            return f"{found}; any number of tokens fits"
        most = self.tokens_that_fit
        return f"{found}; up to {most:,} tokens a sequence fit" if most else f"{found}; not one token fits"

    @property
    def text(self) -> str:
        """All of it, a line each."""
        lines = [self.title]
        lines += [
            f"  {term.name}: {term.equation} = {term.bytes:,} B ({bytes_text(term.bytes)})" for term in self.terms
        ]
        lines += [self.verdict, *(f"  note: {note}" for note in self.notes)]
        if self.memory is not None and self.tokens:
            lines += [f"in {bytes_text(self.memory)} at {count_text(self.tokens, 'token')}:"]
            lines += [f"  {option.text}" for option in self.combinations()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><td {left}>{html.escape(term.name)}</td><td {left}>{html.escape(term.equation)}</td>"
            f"<td>{term.bytes:,}</td><td>{bytes_text(term.bytes)}</td></tr>"
            for term in self.terms
        )
        head = f"<tr><th {left}>term</th><th {left}>equation</th><th>bytes</th><td></td></tr>"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        body = f"<p><b>{html.escape(self.title)}</b></p><table>{head}{rows}</table><p>{html.escape(self.verdict)}</p>"
        body += f"<ul>{notes}</ul>" if notes else ""
        if self.memory is not None and self.tokens:
            found = "".join(f"<li>{html.escape(option.text)}</li>" for option in self.combinations())
            body += f"<p>In {bytes_text(self.memory)} at {count_text(self.tokens, 'token')}:</p><ul>{found}</ul>"
        return body

    def to_json(self) -> dict[str, Any]:
        """All of it in plain types."""
        return {
            "title": self.title,
            "tokens": self.tokens,
            "batch": self.batch,
            "dtype": self.weights.name,
            "kv_dtype": self.kv.name,
            "page_size": self.page_size,
            "window": self.window,
            "shards": self.shards,
            "overhead": asdict(self.overhead),
            "parameters": self.parameters._asdict(),
            "terms": [term._asdict() for term in self.terms],
            "bytes": self.bytes,
            "memory": self.memory,
            "fits": self.fits,
            "free": self.free,
            "tokens_that_fit": self.tokens_that_fit,
            "endless": self.endless,
            "notes": self.notes,
        }


def plan(
    config_or_model: Any,
    memory: int | str | None = None,
    tokens: int | None = None,
    batch: int = 1,
    dtype: Any = "bf16",
    kv_dtype: Any = None,
    page_size: int = 16,
    window: int | None = None,
    shards: int = 1,
    overhead: Overhead | int | None = None,
    mla: str = "latent",
    parameters: int | None = None,
) -> Plan:
    """Bytes of weights, cache and workspace on one device, term by term; and how many tokens fit. Nothing is run.

    config_or_model, mla: as in kv_bytes_per_token. memory: of one device, bytes or "24GiB", "24GB". A GB is 10^9 bytes, a
    GiB 2^30: a card that is sold as 24 GB has 24 GiB = 24,576 MiB, so say "24GiB".
    tokens: of each sequence, None: as many as fit, up to what the model was made for. batch: sequences.
    dtype: of the weights, "fp32", "fp16", "bf16", "fp8", "int8" (8.125 bits) or "int4" (4.25 bits: scales and zero points
    included; embeddings and output layer stay in 16), a torch.dtype, or a WeightScheme of your own. kv_dtype: of the
    cache, as in kv_bytes_per_token, or a KVScheme; None: that of the weights, or bf16 if they are quantized.
    page_size: tokens a page, so the last page of a sequence is not full; 1 for a cache without pages.
    window: tokens that every layer keeps at most. shards: devices over which heads and matrices are split (tensor
    parallel): the figures are those of the device that has most.
    overhead: an Overhead with other assumptions, or bytes for all of it. parameters: their number, where transformers
    cannot build the model; on a config that it knows they are counted.

    Raises InvalidRequest.
    """
    weights = weight_scheme(dtype)
    if kv_dtype is None:
        kv_dtype = weights.name if weights.bits == weights.rest_bits and weights.name in KV_SCHEMES else "bf16"
    sizes = sizes_of(config_or_model)
    asked = None if tokens is None else counted("tokens", tokens)
    if asked is memory is None and sizes.context is None:
        raise InvalidRequest("name memory or tokens: the config has no max_position_embeddings")
    made = Plan(
        sizes,
        tuple(kv_layers(config_or_model, mla)),
        count_parameters(config_or_model) if parameters is None else Parameters(counted("parameters", parameters), 0),
        None if memory is None else memory_bytes(memory),
        asked or sizes.context or ENDLESS,
        counted("batch", batch),
        weights,
        kv_scheme(kv_dtype),
        counted("page_size", page_size),
        None if window is None else counted("window", window),
        counted("shards", shards, MOST_SHARDS),
        _overhead(overhead),
        memory if isinstance(memory, str) else "",
    )
    most = made.tokens_that_fit
    return made if asked or most is None else replace(made, tokens=min(most, made.tokens))


def memory_bytes(memory: int | str) -> int:
    """24 * 1024**3, "24GiB" (2^30 bytes each) or "24GB" (10^9 bytes each). Raises InvalidRequest."""
    if not isinstance(memory, str):
        return counted("memory", memory)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\s*", memory, re.IGNORECASE)
    if not found or not 0 < float(found[1]) < math.inf:
        raise InvalidRequest(f"memory must be bytes, or a text such as '24GiB' or '24GB', got {memory!r:.40}")
    return counted("memory", round(float(found[1]) * UNITS[found[2].upper()]))


def _overhead(overhead: Overhead | int | None) -> Overhead:
    if overhead is None or isinstance(overhead, Overhead):
        return overhead or Overhead()
    try:
        context = counted("overhead", overhead, least=0)
    except InvalidRequest as error:
        raise InvalidRequest(f"an Overhead, or bytes, are needed: {error}") from None
    return Overhead(context=context, logits_tokens=0, hidden_copies=0, inner_copies=0)
