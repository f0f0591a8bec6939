"""holders(): who keeps a cache or a tensor alive, and how many bytes that costs.

A name is deleted, and the memory stays: something else still refers to it. This asks Python's garbage collector for
the references that lead to an object, and says each as one would write it: a variable, an attribute, an item.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kvviz.errors import InvalidRequest
from kvviz.memory.alive import variables_of
from kvviz.memory.owners import storage_of, tensors_of

DEPTH = 4  # containers in containers: further up than this nobody reads on
HIDDEN = {"__builtins__", "__dict__"}


class Holder(NamedTuple):
    """`where`, as one would write it: `out["cache"]`, `kept[3]`, `model.cache`. `bytes`: what it keeps alive."""

    where: str
    kind: str
    bytes: int


def held_bytes(thing: Any) -> int:
    """Bytes of the storages that the tensors in `thing` keep alive, each storage once."""
    storages = {s.data_ptr(): s.nbytes() for s in map(storage_of, tensors_of(thing)) if s is not None}
    return sum(storages.values())


def holders(thing: Any) -> list[Holder]:
    """Everything that keeps `thing` (a cache, a tensor, any object) alive, named from the outside.

    For a tensor also the tensors that share its storage: a small view keeps the whole storage alive. The caller's own
    reference is in the list, too: memory goes when the list is empty but for the names you delete next.
    """
    if thing is None or isinstance(thing, (bool, int, float, str, bytes, type, types.ModuleType)) or thing == ():
        raise InvalidRequest(f"holders() takes a tensor, a cache or an object that holds some, not {thing!r}")
    size = held_bytes(thing)
    frame = sys._getframe(1)
    found = {where: Holder(where, kind, size) for where, kind in _paths(thing, frame)}
    if isinstance(thing, torch.Tensor):
        storage = storage_of(thing)
        address = storage.data_ptr() if storage is not None else 0
        for other in _sharing(thing, address):
            for where, _ in _paths(other, frame):
                found.setdefault(where, Holder(where, f"view {tuple(other.shape)} of the same storage", size))
    return sorted(found.values(), key=lambda holder: holder.where)


def _sharing(tensor: torch.Tensor, address: int) -> list[torch.Tensor]:
    out = []
    for other in gc.get_objects():
        if issubclass(type(other), torch.Tensor) and other is not tensor:
            storage = storage_of(other)
            if storage is not None and storage.data_ptr() == address:
                out.append(other)
    return out


def _paths(
    thing: Any, frame: types.FrameType, depth: int = DEPTH, seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, str]]:
    """(path, kind) of each way that leads from a name to `thing`."""
    seen |= {id(thing)}
    names = list(_names(thing, frame))
    yield from ((name, "variable") for name in names)
    if depth == 0:
        return
    for referrer in gc.get_referrers(thing):
        if id(referrer) in seen or isinstance(referrer, (types.FrameType, types.ModuleType)) or _is_ours(referrer):
            continue
        for step, kind, holder in _steps(referrer, thing):
            for path, _ in _paths(holder, frame, depth - 1, seen | {id(referrer)}):
                yield path + step, kind


def _names(thing: Any, frame: types.FrameType) -> Iterator[str]:
    """Variables of the calling functions and of their modules that are `thing` itself."""
    walk: types.FrameType | None = frame
    spaces: dict[int, dict] = {}
    while walk is not None:
        if not walk.f_globals.get("__name__", "").startswith(
            ("kvviz.memory", "IPython", "ipykernel", "pytest", "_pytest")
        ):
            if walk.f_code.co_flags & inspect.CO_OPTIMIZED or walk.f_locals is not walk.f_globals:
                spaces[id(walk)] = variables_of(walk)
            spaces[id(walk.f_globals)] = walk.f_globals
        walk = walk.f_back
    for space in spaces.values():
        for name, value in list(space.items()):
            if value is thing and name not in HIDDEN and isinstance(name, str):
                yield name


def _steps(referrer: Any, thing: Any) -> Iterator[tuple[str, str, Any]]:
    """(step, kind, holder): how `referrer` refers to `thing`, and the object that one would write before the step."""
    if isinstance(referrer, dict):
        owner = next((o for o in gc.get_referrers(referrer) if getattr(o, "__dict__", None) is referrer), None)
        for key, value in list(referrer.items()):
            if value is thing:
                if owner is not None and not isinstance(owner, types.ModuleType):
                    yield f".{key}", f"attribute of a {type(owner).__name__}", owner
                elif owner is None:
                    yield (
                        f"[{key!r}]" if not isinstance(key, str) else f'["{key}"]',
                        f"item of a {type(referrer).__name__}",
                        referrer,
                    )
    elif isinstance(referrer, (list, tuple)):
        for place, value in enumerate(referrer):
            if value is thing:
                yield f"[{place}]", f"item of a {type(referrer).__name__}", referrer
    elif isinstance(referrer, types.CellType):
        for function in gc.get_referrers(referrer):
            if isinstance(function, tuple):
                for user in gc.get_referrers(function):
                    if isinstance(user, types.FunctionType):
                        yield ".__closure__", f"closure of {user.__name__}()", user
    elif hasattr(referrer, "__dict__"):
        for key, value in list(vars(referrer).items()):
            if value is thing:
                yield f".{key}", f"attribute of a {type(referrer).__name__}", referrer


def _is_ours(referrer: Any) -> bool:
    """References that this search itself has made."""
    return isinstance(referrer, types.GeneratorType) or type(referrer).__name__ in (
        "list_iterator",
        "dict_itemiterator",
    )
