"""What exists in this process: modules and tensors, as Python's garbage collector knows them."""

from __future__ import annotations

import gc

import torch


def modules_and_tensors() -> tuple[list[torch.nn.Module], list[torch.Tensor]]:
    """Modules and tensors that exist now, in the collector's order, which is nearly that of their making."""
    gc.collect()  # garbage in cycles would count as alive
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
