"""What the tensors that Python still sees show of their storages: the difference is kept, but nobody looks at it.

A trace says which blocks are alive; it cannot say why. At the end of a recording two things more can be asked for: how
much of each storage its tensors show (a slice keeps the whole), and whether any of them has a graph behind it (what is
alive and seen by no tensor is then kept by autograd).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kvviz.memory.alive import variables_of
from kvviz.memory.owners import storage_of


class Shown(NamedTuple):
    """storages: address -> bytes that its tensors show, each element once per view. graphs: tensors with a grad_fn."""

    storages: dict[int, int]
    graphs: int

    def elsewhere(self, places: Mapping[Any, int]) -> list[str]:
        """What a reader of a CPU recording must be told of storages that are alive and in none of its `places`."""
        unknown = [size for address, size in self.storages.items() if address not in places]
        if not unknown:
            return []
        what = f"{len(unknown):,} storages of {sum(unknown):,} B" if len(unknown) > 1 else f"a storage of {unknown[0]:,} B"
        return [f"{what} came without the recording seeing it: on a CPU it sees its own thread only, and no file or numpy"]

    def at(self, places: Mapping[Any, int]) -> dict[str, Any]:
        """As a trace keeps it. places: address in this process -> address in the trace."""
        return {
            "shown": [[places[a], size] for a, size in self.storages.items() if a in places],
            "graphs": self.graphs,
        }


def shown(tensors: Sequence[torch.Tensor], device: str) -> Shown:
    """Look at the tensors that lie on a device of that type."""
    views: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], int] = {}
    whole: dict[int, int] = {}
    graphs = 0
    seen = _referred(tensors)
    # a gradient hangs on its parameter, and has no Python object until somebody asks for it
    seen += [t.grad for t in seen if t.is_leaf and t.requires_grad and t.grad is not None]
    for tensor in seen:
        storage = storage_of(tensor)
        if storage is None or storage.device.type != device:
            continue
        address = storage.data_ptr()
        whole[address] = storage.nbytes()
        graphs += tensor.grad_fn is not None
        sizes = tuple(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step)  # expanded ones once
        count = 1
        for n in sizes:
            count *= n
        views[address, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()] = count * tensor.element_size()
    storages = dict.fromkeys(whole, 0)
    for (address, *_), size in views.items():
        storages[address] = min(whole[address], storages[address] + size)
    return Shown(storages, graphs)


def _referred(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that the program itself refers to.

    PyTorch keeps the Python object of a tensor for which it has a use: a view keeps the tensor that it was cut from, a
    graph what its backward pass will read. Nobody shows these. They are told apart by looking through all references.
    """
    if any(tensor.grad_fn is not None for tensor in tensors):
        suspects = {id(tensor) for tensor in tensors}
    else:
        suspects = {id(tensor._base) for tensor in tensors if tensor._is_view()}
    if not suspects:
        return list(tensors)
    there = _referents(tensors)
    wanted = np.array(sorted(suspects), "u8")
    nobodys = set(wanted[~np.isin(wanted, there)].tolist())
    return [tensor for tensor in tensors if id(tensor) not in nobodys]


def _referents(ours: Sequence[torch.Tensor]) -> np.ndarray:
    """The id of everything that some object or some running function's variable refers to; our own list does not count."""
    objects: list[Any] = [thing for thing in gc.get_objects() if thing is not ours]
    found = gc.get_referents(*objects)
    del objects
    for frame in sys._current_frames().values():
        while frame is not None:
            if not frame.f_globals.get("__name__", "").startswith("kvviz.memory"):
                found.extend(variables_of(frame).values())
            frame = frame.f_back  # type: ignore[assignment]
    return np.fromiter(map(id, found), "u8", len(found))
