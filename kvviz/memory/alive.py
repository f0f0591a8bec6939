"""What exists in this process: modules and tensors, as Python's garbage collector knows them, and running functions'
variables, which it does not know."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FrameType
from typing import Any

import torch


def modules_and_tensors(collect: bool = True) -> tuple[list[torch.nn.Module], list[torch.Tensor]]:
    """Modules and tensors that exist now, in the collector's order, which is nearly that of their making.

    collect: garbage in cycles goes first, or it would count as alive.
    """
    if collect:
        gc.collect()
    modules, tensors = [], []
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance: that runs code of lazy proxies
        if issubclass(kind, torch.Tensor):
            tensors.append(thing)
        elif issubclass(kind, torch.nn.Module):
            modules.append(thing)
    return modules, tensors


def roots(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules that are part of no other."""
    children = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children and "_parameters" in vars(module)]


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function or module, by name; nothing of them stays behind.

    Before Python 3.13 `f_locals` of a function is a copy that the frame keeps: what the function deletes later would
    live on in it.
    """
    snapshot = frame.f_locals
    found = dict(snapshot)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(snapshot) is dict and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()  # more references: the function called locals() and has the copy for itself
    return found
