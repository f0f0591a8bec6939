"""Workloads: how long prompts and outputs are, when they come, and prompts that begin alike."""

from __future__ import annotations

import csv
import math
import os
import random
from collections.abc import Sequence
from datetime import datetime
from numbers import Real
from typing import NamedTuple

from kvviz.counts import natural, positive
from kvviz.errors import InvalidRequest, brief
from kvviz.memory.check import path_of, whole


class Job(NamedTuple):
    """Prompt and output, in tokens; seconds after the first one when it comes."""

    prompt: int
    output: int
    at: float = 0.0


class Mix(NamedTuple):
    """Mean tokens of prompts and of outputs."""

    prompt: float
    output: float


MIXES = {"sharegpt": Mix(161.31, 337.99), "alpaca": Mix(19.31, 58.45)}


def workload(
    mix: str = "sharegpt", count: int = 256, longest: int = 2048, spread: float = 1.0, rate: float = 0.0, seed: int = 0
) -> list[Job]:
    """`count` jobs, the same for the same arguments. mix: "sharegpt" or "alpaca".

    The means are those of figure 11 of Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", 2023 (arXiv 2309.06180): ShareGPT 161.31 prompt and 337.99 output tokens, Alpaca 19.31 and 58.45.
    The paper prints no other moment, so the shape is an assumption: lognormal, `spread` the standard deviation of the
    logarithm. Lengths are scaled until their means are the published ones, after no job is left with more than
    `longest` tokens, prompt and output together.

    rate: jobs a second, with exponential gaps between them; 0: all at once.
    Raises InvalidRequest for an unknown mix, and where so short a `longest` makes the means impossible.
    """
    if not isinstance(mix, str) or mix not in MIXES:
        raise InvalidRequest(f"mix must be one of {', '.join(MIXES)}, got {brief(mix)}")
    if not isinstance(spread, Real) or not isinstance(rate, Real) or math.inf in (spread, rate):
        raise InvalidRequest(f"spread and rate must be numbers, got {brief(spread)} and {brief(rate)}")
    if not spread >= 0 or not rate >= 0:
        raise InvalidRequest(f"spread and rate must not be negative, got {spread!r} and {rate!r}")
    count, longest, draw = positive("count", count), positive("longest", longest), random.Random(whole(seed, "seed"))
    raw = [(math.exp(draw.gauss(0, spread)), math.exp(draw.gauss(0, spread))) for _ in range(count)]
    prompts = _scaled([p for p, _ in raw], [longest - 1] * count, MIXES[mix].prompt)
    outputs = _scaled([o for _, o in raw], [longest - p for p in prompts], MIXES[mix].output)
    at, jobs = 0.0, []
    for prompt, output in zip(prompts, outputs, strict=True):
        jobs.append(Job(prompt, output, at))
        at += draw.expovariate(rate) if rate else 0.0
    return jobs


def _scaled(lengths: Sequence[float], most: Sequence[int], mean: float) -> list[int]:
    """Whole lengths 1 … most in the proportions of `lengths`, with that mean (to a few tokens in all)."""

    def at(factor: float) -> list[int]:
        return [min(limit, max(1, round(length * factor))) for length, limit in zip(lengths, most, strict=True)]

    if sum(most) < mean * len(lengths):
        raise InvalidRequest(f"a mean of {mean} tokens needs longer jobs than these: raise longest")
    low, high = 0.0, 1.0
    while sum(at(high)) < mean * len(lengths):
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) < mean * len(lengths) else (low, middle)
    return at(high)


def shared_prefixes(
    count: int,
    vocabulary: int,
    prefixes: int = 4,
    prefix_tokens: int = 64,
    tokens: tuple[int, int] = (4, 64),
    seed: int = 0,
) -> list[list[int]]:
    """`count` prompts of random ids: one of `prefixes` beginnings (as system prompts are), and a tail of its own.

    tokens: shortest and longest tail.
    """
    if not isinstance(tokens, tuple | list) or len(tokens) != 2:
        raise InvalidRequest(f"tokens must be the shortest and the longest tail, got {brief(tokens)}")
    for name, value in (("vocabulary", vocabulary), ("tokens[0]", tokens[0]), ("tokens[1]", tokens[1])):
        positive(name, value)
    if tokens[1] < tokens[0]:
        raise InvalidRequest(
            f"tails of {tokens[0]:,} to {tokens[1]:,} tokens: the longest is shorter than the shortest"
        )
    draw = random.Random(whole(seed, "seed"))

    def some(length: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(length)]

    heads = [some(natural("prefix_tokens", prefix_tokens)) for _ in range(positive("prefixes", prefixes))]
    return [draw.choice(heads) + some(draw.randint(*tokens)) for _ in range(positive("count", count))]


# columns of public request traces, by their names in lower-case letters
AT = ("timestamp", "arrivedat", "time")
PROMPT = ("contexttokens", "prompttokens", "requesttokens", "inputtokens", "inputlength")
OUTPUT = ("generatedtokens", "outputtokens", "responsetokens", "outputlength")


def read_trace(path: str | os.PathLike[str], limit: int | None = None, skip_empty: bool = False) -> list[Job]:
    """Jobs of a CSV file with a header that names a time, prompt tokens and output tokens; other columns are ignored.

    Azure's LLM inference traces (TIMESTAMP,ContextTokens,GeneratedTokens) and BurstGPT's are such files. Times are
    seconds, or dates, and must not go back. limit: rows to read. skip_empty: leave out rows with 0 tokens, which some
    traces write for requests that failed.

    Raises InvalidRequest, naming the row (the header is row 1), what was expected and what is there.
    """
    name, jobs = os.path.basename(path_of(path)), []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = ["".join(filter(str.isalpha, column)).lower() for column in next(reader, [])]
            columns = [_column(name, header, names) for names in (AT, PROMPT, OUTPUT)]
            start = before = None
            for cells in reader:
                row = f"{name}, row {reader.line_num}"
                if not cells:
                    continue
                if len(cells) <= max(columns):
                    raise InvalidRequest(f"{row}: {len(cells)} columns, not the {len(header)} of the header")
                at = _seconds(row, cells[columns[0]])
                prompt, output = (_tokens(row, cells[k], skip_empty) for k in columns[1:])
                start = at if start is None else start
                if before is not None and at < before:
                    raise InvalidRequest(f"{row}: {cells[columns[0]]} is earlier than the row before")
                before = at
                if prompt and output:
                    jobs.append(Job(prompt, output, at - start))
                if limit is not None and len(jobs) >= limit:
                    break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"{name} cannot be read as a CSV file: {error}") from error
    if not jobs:
        raise InvalidRequest(f"{name} has no row of a request")
    return jobs


def _column(name: str, header: list[str], names: Sequence[str]) -> int:
    found = [k for k, column in enumerate(header) if column in names]
    if not found:
        raise InvalidRequest(f"{name}, row 1: no column is called {' or '.join(names)}; there are {', '.join(header)}")
    return found[0]


def _tokens(row: str, cell: str, skip_empty: bool) -> int:
    try:
        value = int(cell)
    except ValueError:
        value = -1
    if value < (0 if skip_empty else 1):
        more = " (skip_empty=True leaves out rows of 0)" if value == 0 else ""
        raise InvalidRequest(f"{row}: tokens must be a whole number from 1 up, got {cell!r}{more}")
    return value


def _seconds(row: str, cell: str) -> float:
    """A number, or a date: Azure writes 2023-11-16 18:15:46.6805900, with a digit more than Python reads."""
    try:
        value = float(cell)
    except ValueError:
        whole, _, fraction = cell.strip().partition(".")
        digits = fraction.split("+")[0].rstrip("Z")
        try:
            since = datetime.fromisoformat(whole) - datetime(1970, 1, 1)
            value = since.total_seconds() + (float(f"0.{digits}") if digits else 0.0)
        except (ValueError, TypeError):
            value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{row}: the time must be seconds or a date, got {cell!r}")
    return value
