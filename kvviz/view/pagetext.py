"""The tokens' text that the page map shows: strings, or ids and something that can read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvviz.errors import ViewError


def texts(tokens: Any, tokenizer: Any = None) -> dict[int, list[str]]:
    """Sequence -> the text of each token. Raises ViewError where that cannot be had.

    tokens: None; a mapping of a sequence's number to strings or ids, one a token; or ids, [sequences, positions].
    tokenizer: for ids, anything with `decode` or `convert_ids_to_tokens`.
    """
    if tokens is None:
        return {}
    if isinstance(tokens, Mapping):
        rows = {_number(sequence): _row(sequence, row) for sequence, row in tokens.items()}
    else:
        rows = dict(enumerate(_table(tokens)))
    known: dict[int, str] = {}
    result = {}
    for sequence, row in rows.items():
        if all(isinstance(token, str) for token in row):
            result[sequence] = row
        elif all(_whole(token) for token in row):
            read = _reader(tokenizer)
            if low := [token for token in row if token < 0]:
                raise ViewError(f"tokens of sequence {sequence} must be ids from 0 up, not {low[0]}")
            for token in set(row) - set(known):
                known[token] = read(int(token))
            result[sequence] = [known[token] for token in row]
        else:
            odd = next(token for token in row if not isinstance(token, str) and not _whole(token))
            raise ViewError(f"tokens of sequence {sequence} must be strings or ids, not {odd!r}")
    return result


def _whole(token: Any) -> bool:
    return isinstance(token, (int, np.integer)) and not isinstance(token, bool)


def _number(sequence: Any) -> int:
    if not _whole(sequence):
        raise ViewError(f"tokens must be keyed by sequences' numbers, not {sequence!r}")
    return int(sequence)


def _row(sequence: Any, row: Any) -> list[Any]:
    row = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(row, str) or not hasattr(row, "__iter__"):
        raise ViewError(f"tokens of sequence {sequence} must be a list, one entry a token, not {row!r}")
    return list(row)


def _table(tokens: Any) -> list[list[Any]]:
    if not hasattr(tokens, "tolist"):
        raise ViewError(
            "tokens must be a dict of sequence -> list of strings, or an integer tensor [sequences, positions], "
            f"not {type(tokens).__name__}"
        )
    shape = list(getattr(tokens, "shape", []))
    if len(shape) != 2:
        raise ViewError(f"tokens must be [sequences, positions], got shape {shape}")
    rows: list[list[Any]] = tokens.tolist()
    if not all(_whole(token) for row in rows for token in row):
        raise ViewError("tokens must be integers: the tokens' ids")
    return rows


def _reader(tokenizer: Any) -> Callable[[int], str]:
    decode, pieces = (getattr(tokenizer, name, None) for name in ("decode", "convert_ids_to_tokens"))
    if decode is None and pieces is None:
        named = "tokens are ids, so a tokenizer is needed" if tokenizer is None else f"{tokenizer!r} cannot read ids"
        raise ViewError(f"{named}: pass tokenizer=, with decode or convert_ids_to_tokens")

    def read(token: int) -> str:
        piece = str((pieces([token]) or [""])[0]) if pieces else ""
        text = str(decode([token])) if decode else piece.replace("Ġ", " ").replace("Ċ", "\n").replace("▁", " ")
        if not text:  # a special token, which some leave out
            return piece
        # some tokenizers drop the space that a word begins with where it is the first
        return f" {text}" if piece[:1] in ("Ġ", "▁") and not text[:1].isspace() else text

    return read
