"""The command line: kvviz show | diagnose | compare | replay | record | size.

Exit codes are for scripts: 0, nothing to report; 1, something was found; 2, trouble, told in one line on stderr.
Nothing heavy is imported up here: a command brings what it needs once its arguments are understood.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kvviz.cli.options import UsageError, parse
from kvviz.errors import KvvizError

TROUBLE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the words of this process if none are given. Returns the exit code."""
    try:
        args = parse(list(sys.argv[1:] if argv is None else argv))
        code = int(args.command(args))
        sys.stdout.flush()
        return code
    except SystemExit as done:  # argparse ends so after --help and --version
        return int(done.code or 0)
    except BrokenPipeError:  # nobody reads any more (| head), which is no trouble of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED)
    except OSError as problem:
        what = problem.strerror or str(problem)
        return _told(f"{problem.filename}: {what}" if problem.filename is not None else what)
    except (KvvizError, UsageError) as problem:
        return _told(str(problem))


def _told(problem: str, code: int = TROUBLE) -> int:
    from kvviz.cli.answer import complain

    complain(problem)
    return code
