"""How an answer leaves: text, JSON or a page; complaints and progress on stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from typing import TextIO

from kvviz.errors import InvalidRequest
from kvviz.memory.report import Report, bytes_text

PATIENCE = 3.0  # seconds: shorter work needs no word, where nobody sits at a terminal
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # a name in a file must not steer the reader's terminal


def answer(args: argparse.Namespace, report: Report, page: Callable[[], str], text: str | None = None) -> None:
    """Print or write `report` in the form that was asked for. page: makes the HTML page. text: instead of the report's."""
    if getattr(args, "html", None):
        page_text = page()
        with open(args.html, "w", encoding="utf-8", newline="\n") as out:
            out.write(page_text)
        say(f"wrote {args.html} ({bytes_text(os.path.getsize(args.html))})")
    elif args.json:
        say(json.dumps(report.to_json(), indent=1))
    else:
        say(report.text if text is None else text)


def say(text: str) -> None:
    """Print on stdout, whatever its encoding, and nothing that steers a terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(CONTROL.sub("�", text), flush=True)


def complain(text: str) -> None:
    """One line on stderr."""
    line = CONTROL.sub("�", " ".join(text.split()))
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print("kvviz: " + line.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)


class Progress:
    """Called with a line before each long part of the work: on a terminal it replaces the last one, elsewhere it is
    printed once PATIENCE is over. `done()` takes it away again."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._clock, self._began = clock, clock()
        self._written = False

    def __call__(self, line: str) -> None:
        line = CONTROL.sub("�", line)
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{line[:width]}")
            self._written = True
        elif self._clock() - self._began >= PATIENCE:
            self._stream.write(f"kvviz: {line}\n")
        self._stream.flush()

    def done(self) -> None:
        if self._written:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._written = False


def check_page(args: argparse.Namespace, *inputs: str) -> None:
    """A page can be written there, and is none of the files that are read: said before the work, not after it."""
    if getattr(args, "html", None):
        check_folder(args.html)
        for path in inputs:
            if os.path.exists(args.html) and os.path.exists(path) and os.path.samefile(args.html, path):
                raise InvalidRequest(f"{args.html} is the file to read; choose another name for the page")


def check_trace_file(path: str) -> None:
    """A trace can be written there, and what it would replace is a trace."""
    check_folder(path)
    if os.path.exists(path) and os.path.getsize(path) and not _is_trace(path):
        raise InvalidRequest(f"{path} is there and no kvviz trace: it is not replaced; choose another name")


def check_folder(path: str) -> None:
    """Raises OSError if no file can be written at `path`, and leaves nothing behind."""
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a folder, not a file to write", path)
    probe = f"{path}.{os.getpid()}.part"
    try:
        open(probe, "xb").close()
        os.unlink(probe)
        if os.path.exists(path):
            open(path, "ab").close()
    except OSError as problem:
        raise type(problem)(problem.errno, f"cannot be written: {problem.strerror}", path) from None


def _is_trace(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return "about.json" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
