"""Who a block belongs to: the tensors inside models, caches and containers, and a watch on caches that grow.

A cache that concatenates makes new storages at every step, so owning it once is not enough. While a recording runs,
the method through which a cache grows is wrapped, and whatever it returns is claimed at once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from kvviz.errors import InvalidRequest

GROWING_METHODS = ("update", "append")  # transformers' caches grow by the first, kvviz's own by the second
OTHER, WEIGHTS, KV_CACHE = range(3)  # the owners that every recording knows; more are named by own()
DEPTH = 4  # a cache holds layers, a layer holds tensors: deeper than this nothing of a cache is found


def tensors_of(thing: Any, depth: int = DEPTH) -> Iterator[torch.Tensor]:
    """Every tensor in a tensor, module, cache, container or plain object; each storage perhaps more than once."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
    elif callable(getattr(type(thing), "kept_tensors", None)):  # a cache that knows what it holds
        yield from thing.kept_tensors()
    elif depth <= 0 or isinstance(thing, (str, bytes, int, float, type(None), type, ModuleType)):
        return
    elif isinstance(thing, dict):
        for value in list(thing.values()):
            yield from tensors_of(value, depth - 1)
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for value in list(thing):
            yield from tensors_of(value, depth - 1)
    elif getattr(thing, "__dict__", None):
        yield from tensors_of(vars(thing), depth)
    elif isinstance(thing, Iterable):
        yield from tensors_of(list(thing), depth)
    elif hasattr(type(thing), "__slots__"):
        for name in type(thing).__slots__:
            yield from tensors_of(getattr(thing, name, None), depth - 1)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage; None for tensors that have none of their own (sparse, fake, wrapped)."""
    try:
        storage = tensor.untyped_storage()
        return storage if storage.nbytes() and storage.data_ptr() else None
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


class Owners:
    """Names for storages, as claims: (when, address, owner). `claim` is called with an owner's index and tensors."""

    def __init__(self, claim: Callable[[int, Iterable[torch.Tensor]], None]):
        self.names = ["other", "weights", "kv cache"]
        self._claim = claim
        self._owned: list[tuple[weakref.ref, int]] = []
        self._by_id: dict[int, int] = {}
        self._restore: list[Callable[[], None]] = []

    def index(self, name: str) -> int:
        """The number of an owner's name, a new one if need be."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def watch_transformers(self) -> None:
        """Claim what any transformers cache returns from `update`, also one that generate() makes for itself."""
        module = sys.modules.get("transformers.cache_utils")
        if module is not None:
            self._watch(module.Cache, "update")

    def own(self, thing: Any, name: str) -> None:
        """Give what `thing` holds now, and what it grows into, a name."""
        tensors = list(tensors_of(thing))  # once: a generator gives its tensors only once
        grows = hasattr(thing, "__dict__") and any(callable(getattr(type(thing), m, None)) for m in GROWING_METHODS)
        if not tensors and not grows:
            raise InvalidRequest(f"a {type(thing).__name__} without a tensor: there is nothing to own as {name!r}")
        owner = self.index(name)
        self._claim(owner, tensors)
        del tensors
        try:
            self._owned.append((weakref.ref(thing), owner))
        except TypeError:  # a list or a tuple: no weak reference is possible, and a strong one would keep it alive
            return
        self._by_id[id(thing)] = owner
        weakref.finalize(thing, self._by_id.pop, id(thing), None)
        module = sys.modules.get("transformers.cache_utils")
        if module is None or not isinstance(thing, module.Cache):
            for method in GROWING_METHODS:
                if callable(getattr(type(thing), method, None)) and hasattr(thing, "__dict__"):
                    self._watch(thing, method)

    def look_again(self) -> None:
        """Claim what the owned things hold at this moment."""
        for reference, owner in self._owned:
            thing = reference()
            if thing is not None:
                self._claim(owner, tensors_of(thing))

    def close(self) -> None:
        """Put every wrapped method back."""
        while self._restore:
            self._restore.pop()()

    def _watch(self, target: Any, method: str) -> None:
        original = getattr(target, method)
        own_attribute = method in vars(target)
        fixed = self._by_id.get(id(target))

        def grows(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            owner = fixed if fixed is not None else self._by_id.get(id(args[0]), KV_CACHE)
            cache = target if fixed is not None else args[0]
            # what a cache of pages returns may be the new tokens only, or a copy to read: it knows better what it holds
            knows = callable(getattr(type(cache), "kept_tensors", None))
            self._claim(owner, tensors_of(cache if knows else result, 2))
            if fixed is not None and result is None:  # an `append` that returns nothing: look at the thing itself
                self.look_again()
            return result

        setattr(target, method, grows)
        self._restore.append(
            (lambda: setattr(target, method, original)) if own_attribute else (lambda: delattr(target, method))
        )
