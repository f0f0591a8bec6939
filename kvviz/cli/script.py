"""A script or module that runs as if python itself ran it: its own argv, path, name, traceback and exit code."""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any

from kvviz.cli.options import UsageError

ERROR, INTERRUPTED = 1, 130


@dataclass(frozen=True)
class Script:
    """`name`: a path (a file, or a folder or zip file with a __main__.py), or a module's name."""

    name: str
    is_module: bool
    args: list[str]

    @classmethod
    def of(cls, words: Sequence[str]) -> Script:
        """From what follows kvviz's own options. Raises UsageError, FileNotFoundError."""
        is_module = list(words[:1]) == ["-m"]
        rest = list(words[1:] if is_module else words)
        if not rest:
            raise UsageError(f"no {'module' if is_module else 'script'} to record (see kvviz record --help)")
        if not is_module:
            os.stat(rest[0])  # raises what one line says well
        return cls(rest[0], is_module, rest[1:])

    @property
    def short_name(self) -> str:
        """For a file's name."""
        return self.name if self.is_module else os.path.splitext(os.path.basename(os.path.abspath(self.name)))[0]

    def run(self) -> tuple[BaseException | None, Any]:
        """Run it to its end: what it raised, and its globals, which live on as long as the caller holds both."""
        process = os.getpid()
        with _as_in_python(self):
            error: BaseException | None = None
            names: Any = None
            try:
                if self.is_module:
                    names = runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                elif _is_packed(self.name):
                    names = runpy.run_path(self.name, run_name="__main__")
                else:
                    names = _run_file(os.path.join(os.getcwd(), self.name))
            except BaseException as raised:  # also SystemExit and KeyboardInterrupt: all of them end the script
                error = raised.with_traceback(_own(raised.__traceback__))
            if os.getpid() != process:  # a fork that came to the script's end: the recording is not its own
                code = self.tell(error)
                _flush()
                os._exit(code)
        return error, names

    def tell(self, error: BaseException | None) -> int:
        """Say how it ended, in python's own way, and return the exit code."""
        _flush()
        if error is None:
            return 0
        if isinstance(error, SystemExit):
            if error.code is None or isinstance(error.code, int):
                return int(error.code or 0)
            print(error.code, file=sys.stderr)
            return ERROR
        if isinstance(error, ImportError) and error.__traceback__ is None:  # python, too, has no traceback for it
            raise UsageError(str(error))
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else ERROR


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a script may have closed or replaced them
            stream.flush()


@contextlib.contextmanager
def _as_in_python(script: Script) -> Iterator[None]:
    """argv and path as python sets them; as before afterwards, for kvviz's own imports."""
    argv, path = sys.argv, sys.path
    sys.argv = [script.name, *script.args]
    if not getattr(sys.flags, "safe_path", False):  # otherwise python puts no folder in front
        sys.path = [*_first_folder(script), *path[1:]]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _first_folder(script: Script) -> list[str]:
    if script.is_module:
        return [os.getcwd()]
    if _is_packed(script.name):
        return []  # runpy puts it there by itself
    return [os.path.dirname(os.path.realpath(script.name))]


def _is_packed(path: str) -> bool:
    """A folder, zip file or .pyc: runpy knows how to run these."""
    return os.path.isdir(path) or path.endswith(".pyc") or (not path.endswith(".py") and zipfile.is_zipfile(path))


def _run_file(path: str) -> ModuleType:
    """As runpy.run_path, which would put the whole path in argv[0], where python leaves what was typed."""
    before, main = sys.modules["__main__"], ModuleType("__main__")
    vars(main).update(__file__=path, __cached__=None, __builtins__=builtins)
    sys.modules["__main__"] = main
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before
    return main


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on: neither kvviz's frames nor runpy's are at its head."""
    ours = (os.path.dirname(__file__) + os.sep, runpy.__file__ or "", "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(tuple(filter(None, ours))):
        trace = trace.tb_next
    return trace


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and calls back once it has been imported."""

    def __init__(self, name: str, then: Callable[[], None]):
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def on_import(name: str, then: Callable[[], None]) -> Iterator[None]:
    """Call `then` right after the module `name` is imported, if that happens in here."""
    finder = _Finder(name, then)
    if name not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
