"""What can be asked on the command line, and how it is read. Nothing heavy is imported here: help comes at once."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from typing import Any, NoReturn

CODES = "exit codes:\n  0  {fine}\n  1  {found}\n  2  trouble, told in one line"
UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}": base ** (k + 1) for k, letter in enumerate("KMGT") for kind, base in (("iB", 1024), ("B", 1000))
}
RECORD_VALUES = ("--out", "--device", "--max-events")  # options of `record` that take a value


class UsageError(Exception):
    """Words that kvviz does not understand."""


class Parser(argparse.ArgumentParser):
    """One line for a mistake instead of the usage and then a line, and no guessing of shortened options."""

    def __init__(self, **how: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **how)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, with `command`: the function that answers them."""
    theirs: list[str] = []
    if argv[:1] == ["record"]:
        own, theirs = split(argv[1:])
        argv = ["record", *own]
    args = _parser().parse_args(argv)
    args.theirs = theirs
    return args


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """kvviz's own words of a `record`, and the script's: all from the first that is no option, or from -m."""
    k = 0
    while k < len(words) and words[k].startswith("-") and words[k] not in ("-m", "--"):
        k += 2 if words[k] in RECORD_VALUES else 1
    return words[:k], words[k + (words[k : k + 1] == ["--"]) :]


def size(text: str) -> int:
    """Bytes: a whole number, or one with KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    units = {name.lower(): unit for name, unit in UNITS.items()}
    if not found or found[2].lower() not in units or (not found[2] and "." in found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 24GiB, 512MiB, 24GB or a number of bytes")
    return (
        int(float(found[1]) * units[found[2].lower()]) if "." in found[1] else int(found[1]) * units[found[2].lower()]
    )


def path(text: str) -> str:
    """The name of a file to write."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no file")
    return text


def count(text: str) -> int:
    """A positive whole number."""
    if not re.fullmatch(r"[\d_,]+", text) or int(text.replace(",", "")) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text.replace(",", ""))


def _lazily(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """The function kvviz.cli.module.name, imported when it is called."""
    return lambda args: getattr(importlib.import_module(f"kvviz.cli.{module}"), name)(args)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvviz")
    except PackageNotFoundError:  # run from a folder that nobody installed
        return "(not installed)"


def _parser() -> Parser:
    parser = Parser(
        prog="kvviz",
        description="See what a language model does with memory: record a run, look at it,\nfind out what would help.",
        epilog="FILE is a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot)\n"
        "or a .kvviz file of `kvviz record`. kvviz COMMAND --help tells more.\n\n"
        + CODES.format(fine="fine", found="found something, differs, ran out of memory, does not fit")
        + "\n\nexample: kvviz diagnose snapshot.pickle --html report.html",
    )
    parser.add_argument("--version", action="version", version=f"kvviz {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")

    def command(
        name: str, what: str, example: str, fine: str, found: str, module: str = "traces", **how: Any
    ) -> Parser:
        """how: for Parser; "codes" in place of the usual line about exit codes."""
        codes = how.pop("codes", CODES.format(fine=fine, found=found))
        new = commands.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=f"{codes}\n\nexample: {example}", **how
        )
        new.set_defaults(command=_lazily(module, name))
        return new

    show = command("show", "what a trace is: its peaks, marks, warnings and a state", "kvviz show run.kvviz --at 1200",
                   "the trace can be read", "never")  # fmt: skip
    _file(show)
    show.add_argument("--at", type=int, metavar="I", help="the state after I events; otherwise at the end")
    _forms(show)

    diagnose = command("diagnose", "why a run takes the memory it takes, and what would help",
                       "kvviz diagnose snapshot.pickle --html report.html", "no fault found", "faults found")  # fmt: skip
    _file(diagnose)
    _settings(diagnose)
    diagnose.add_argument("--capacity", type=size, metavar="SIZE", help="as on a device of this size, such as 24GiB")
    _forms(diagnose)

    compare = command("compare", "two runs side by side, by what they hold and where it was asked for",
                      "kvviz compare before.kvviz after.kvviz", "no difference", "differences")  # fmt: skip
    compare.add_argument("a", metavar="A", help="snapshot or .kvviz file")
    compare.add_argument("b", metavar="B", help="the other one")
    _device(compare)
    _forms(compare)

    replay = command("replay", "the same run under other settings of PyTorch's allocator, or on another device",
                     "kvviz replay run.kvviz --setting expandable_segments:True",
                     "at least one setting carries the run to its end", "memory runs out under all of them")  # fmt: skip
    _file(replay)
    _settings(replay)
    replay.add_argument(
        "--capacity", type=size, metavar="SIZE", help="bytes of the device; otherwise the recorded one's"
    )
    replay.add_argument("--out", type=path, metavar="FILE.kvviz", help="save the replayed run (of one --setting)")
    _forms(replay)

    record = command(
        "record", "run a Python script and keep what it does with memory", "kvviz record --diagnose train.py --epochs 1",
        "", "", module="record",
        usage="kvviz record [options] script.py [arg ...]\n       kvviz record [options] -m module [arg ...]",
        codes="All that follows the script belongs to the script. The trace is saved\nhowever the script ends.\n\n"
        "exit codes: the script's own; 2 if it cannot be recorded",
    )  # fmt: skip
    record.add_argument("--out", type=path, metavar="FILE.kvviz", help="where to save; otherwise a new file like the script")
    record.add_argument(
        "--device", choices=("cpu", "cuda"), help="what to record; otherwise the GPU where there is one"
    )
    record.add_argument("--max-events", type=count, default=2_000_000, metavar="N", help="keep the newest N events")
    record.add_argument("--no-stacks", action="store_true", help="do not note which line asked for memory: faster")
    record.add_argument("--diagnose", action="store_true", help="print a diagnosis afterwards")

    fits = command("size", "how many bytes the KV cache of a model needs", "kvviz size llama-3-8b --tokens 32768 --fits 24GiB",
                   "fine, or it fits", "it does not fit", module="size")  # fmt: skip
    fits.add_argument(
        "model", nargs="?", metavar="MODEL", help="a model's folder, its config.json, or a name such as llama-3-8b"
    )
    fits.add_argument("--layers", type=count, metavar="N", help="without a MODEL: number of layers")
    fits.add_argument("--kv-heads", type=count, metavar="N", help="... of KV heads")
    fits.add_argument("--head-dim", type=count, metavar="N", help="... and the size of a head")
    fits.add_argument("--dtype", metavar="NAME", help="of the cache, such as bfloat16 or int8; otherwise the model's")
    fits.add_argument("--tokens", type=count, metavar="N", help="of each sequence (1; with --fits as many as fit)")
    fits.add_argument("--batch", type=count, default=1, metavar="N", help="sequences (1)")
    fits.add_argument(
        "--page-size", type=count, default=16, metavar="N", help="tokens of a page; whole ones count (16)"
    )
    fits.add_argument(
        "--fits", type=size, metavar="SIZE", help="does it fit there, with weights and workspace of a MODEL?"
    )
    fits.add_argument("--json", action="store_true", help="one JSON document")
    return parser


def _file(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="snapshot or .kvviz file")
    _device(parser)


def _device(parser: Parser) -> None:
    parser.add_argument("--device", type=int, metavar="N", help="otherwise the one with the highest reserved peak")


def _settings(parser: Parser) -> None:
    parser.add_argument(
        "--setting", action="append", metavar="CONF",
        help="what to try, written as in PYTORCH_CUDA_ALLOC_CONF; may be given again; otherwise a few usual ones",
    )  # fmt: skip


def _forms(parser: Parser) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="one JSON document instead of text")
    forms.add_argument("--html", type=path, metavar="OUT", help="write one page with moving pictures, which needs no network")
