"""kvviz size: bytes of a KV cache, from a model's config or from numbers alone."""

from __future__ import annotations

import argparse
import os
from typing import Any

from kvviz.cli.answer import answer
from kvviz.errors import InvalidRequest
from kvviz.memory.report import Report, Section, bytes_text, count_text

FITS, TOO_LARGE = 0, 1
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "half": "fp16", "float": "fp32"}
NUMBERS = ("layers", "kv_heads", "head_dim")


def size(args: argparse.Namespace) -> int:
    """1 where it does not fit. With a model and --fits its weights and workspace count, too."""
    config = _config(args)
    dtype = _dtype(args.dtype, config)
    if args.model is not None and args.fits is not None:
        return _planned(args, config, dtype)
    return _cache(args, config, dtype)


def _config(args: argparse.Namespace) -> Any:
    numbers = {name: getattr(args, name) for name in NUMBERS}
    given = [f"--{name.replace('_', '-')}" for name, value in numbers.items() if value is not None]
    if args.model is not None:
        if given:
            raise InvalidRequest(f"a model and {given[0]}: give one or the other")
        return _known(args.model)
    if len(given) < len(NUMBERS):
        raise InvalidRequest("give a model's folder or config.json, or all of --layers, --kv-heads and --head-dim")
    return {
        "num_hidden_layers": args.layers, "num_attention_heads": args.kv_heads, "num_key_value_heads": args.kv_heads,
        "head_dim": args.head_dim,
    }  # fmt: skip


def _known(model: str) -> Any:
    from kvviz.sizing import KNOWN

    if not os.path.exists(model):
        if model in KNOWN:
            return KNOWN[model]
        raise InvalidRequest(f"{model}: no such file or folder, and none of {', '.join(KNOWN)}")
    return model


def _dtype(asked: str | None, config: Any) -> str:
    """One of sizing's names: what was asked for, else what the config says, else bf16."""
    from kvviz.sizing.shape import read_config

    said = None if asked else getattr(read_config(config), "dtype", None)
    name = asked or str(said or "bf16").removeprefix("torch.")
    return DTYPES.get(name, name)


def _planned(args: argparse.Namespace, config: Any, dtype: str) -> int:
    from kvviz.sizing import plan

    weights = "bf16" if args.dtype else dtype  # --dtype is the cache's
    made = plan(config, args.fits, args.tokens, args.batch, weights, dtype, args.page_size)
    answer(args, Report(made.title, nothing=made.verdict, figures=made.to_json()), str, made.text)
    return FITS if made.fits else TOO_LARGE


def _cache(args: argparse.Namespace, config: Any, dtype: str) -> int:
    from kvviz.sizing import KV_SCHEMES, kv_bytes_per_token, kv_layers
    from kvviz.sizing.terms import cache_terms

    each, tokens = kv_bytes_per_token(config, dtype), args.tokens or 1
    terms = list(cache_terms(tuple(kv_layers(config)), KV_SCHEMES[dtype], tokens, args.batch, args.page_size, 1))
    total = sum(term.bytes for term in terms)
    fits = None if args.fits is None else total <= args.fits
    lines = [f"{term.name}: {term.equation} = {term.bytes:,} B ({bytes_text(term.bytes)})" for term in terms]
    if fits is not None:
        verdict = "fits" if fits else "does not fit"
        lines.append(f"{verdict} in {args.fits:,} B ({bytes_text(args.fits)}): the cache alone, without weights")
    figures = {
        "dtype": dtype, "bytes_per_token": each, "tokens": tokens, "batch": args.batch, "page_size": args.page_size,
        "bytes": total, "memory": args.fits, "fits": fits,
    }  # fmt: skip
    report = Report(
        f"KV cache in {dtype}: {each:,} B a token",
        nothing=f"{count_text(tokens, 'token')} × {count_text(args.batch, 'sequence')}: {total:,} B ({bytes_text(total)})",
        sections=[Section("Term by term", lines)],
        figures=figures,
    )
    answer(args, report, str)
    return TOO_LARGE if fits is False else FITS
