"""Where an allocation comes from: the torch function, the module it runs in, the user's own line.

A function mode sees each call of a torch function and notes when it began; allocations are given, by time, to the call
that was running. Modules announce themselves through forward hooks, so that the Python stack is walked only once for
each call of a whole model and for calls outside of any.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import weakref
from array import array
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

_LIBRARIES = tuple(
    {sysconfig.get_path(k) for k in ("stdlib", "purelib", "platlib")} | {__file__.rpartition("memory")[0]}
)


class Sites(TorchFunctionMode):
    """While entered, notes every torch function called on this thread."""

    def __init__(self, roots: Iterable[torch.nn.Module]):
        super().__init__()
        self._names = weakref.WeakKeyDictionary(
            {module: name or type(root).__name__ for root in roots for name, module in root.named_modules()}
        )
        self._times, self._codes = array("q"), array("q")
        self._known: dict[tuple, int] = {}
        self.texts: list[str] = []
        self._inside: list[tuple[str, str]] = []  # (module, user's line) of each forward now running
        self._thread = threading.get_ident()
        self._hooks: list[Any] = []

    def __enter__(self) -> Sites:
        self._hooks = [
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*problem)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place: Any = self._inside[-1] if self._inside else _chain(sys._getframe(1))
        code = self._known.get((func, place))
        if code is None:
            code = self._known[func, place] = len(self.texts)
            module, line = place if self._inside else ("", _own_line(place))
            self.texts.append(" · ".join(part for part in (_name(func), module, line) if part))
        self._codes.append(code)
        self._times.append(time.time_ns())
        return func(*args, **(kwargs or {}))

    def _module_begins(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() == self._thread:
            line = self._inside[-1][1] if self._inside else _own_line(_chain(sys._getframe(1)))
            self._inside.append((self._names.get(module) or type(module).__name__, line))

    def _module_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._inside and threading.get_ident() == self._thread:
            self._inside.pop()

    def running_at(self, times: np.ndarray) -> np.ndarray:
        """For each time (ns) the index into `texts` of the call last begun, -1 before the first."""
        began = np.frombuffer(self._times, "i8") if self._times else np.zeros(0, "i8")
        codes = np.frombuffer(self._codes, "i8") if self._codes else np.zeros(0, "i8")
        last = np.searchsorted(began, times, side="right") - 1
        return np.where(last >= 0, codes[np.maximum(last, 0)] if len(codes) else -1, -1)


def _chain(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """(code, line) of each frame, innermost first."""
    chain = []
    while frame is not None:
        chain.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(chain)


def _own_line(chain: tuple[tuple[CodeType, int], ...]) -> str:
    """The innermost line that is the user's own, as file:line without its folder; a notebook's cell as "cell line n"."""
    for code, line in chain:
        path = code.co_filename
        if path.startswith("<") or path.startswith(_LIBRARIES):
            continue
        if "ipykernel_" in path:
            return f"cell line {line}"
        return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    return ""


def _name(func: Any) -> str:
    """`torch.cat`, `Tensor.mul`, `silu`: a torch function as one would write it."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":  # an attribute such as .shape or .device
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', 'attribute')}"
    owner = getattr(func, "__objclass__", None) or getattr(func, "__self__", None)
    if owner is not None and "Tensor" in getattr(owner, "__name__", ""):
        return f"Tensor.{name.strip('_')}"
    return f"torch.{name}"
