"""Ranks: the processes that torchrun started, what they say to one another, and which heads each of them has.

    with ranks.join() as here:      # the process group of torchrun; one rank alone where there is no torchrun
        here.rank, here.count

No wait is for ever: a rank that does not answer in time is a RankError on the others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from kvviz.errors import InvalidRequest, RankError

WAIT = 60.0  # seconds, where nobody says otherwise
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a rank
_CPU = torch.device("cpu")

Point = TypeVar("Point")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Ranks:
    """This process among `count` of them. All methods are collective: every rank calls them, in the same order.

    device: where this rank's part of a model goes.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = _CPU

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, written over this one: the same bits on every rank."""
        if self.count > 1:
            with self._heard():
                dist.all_reduce(part)
        return part

    def numbers(self, *mine: int) -> list[list[int]]:
        """Each rank's numbers (64 bit); as many from every rank. They go over the CPU, so no GPU is waited for."""
        if self.count == 1:
            return [list(mine)]
        found = torch.empty(self.count, len(mine), dtype=torch.int64)
        with self._heard():
            dist.all_gather(list(found), torch.tensor(mine, dtype=torch.int64))
        return found.tolist()

    def objects(self, mine: Any) -> list[Any]:
        """Each rank's object, pickled on the way."""
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        with self._heard():
            dist.all_gather_object(found, mine)
        return found

    def spread(self, points: Sequence[Point], measure: Callable[[Point], Found]) -> list[Found]:
        """measure(point) for all points, each on one rank, by turns; all results, in order, on every rank.

        Raises RankError on every rank where one of them failed: they wait for one another with what they have.
        """
        found, failed = [], ""
        try:
            found = [measure(point) for point in points[self.rank :: self.count]]
        except Exception as error:
            failed = told(error)
        each = self.objects((failed, found))
        if bad := [f"rank {rank}: {why}" for rank, (why, _) in enumerate(each) if why]:
            raise RankError("; ".join(bad))
        return [each[k % self.count][1][k // self.count] for k in range(len(points))]

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises, all of it below this one
            why = re.sub(r"\[/\S+\] |\. This is typically.*", "", told(error))  # gloo's source line, and its advice
            raise RankError(f"rank {self.rank} of {self.count} gets no answer from the others: {why}") from error


def leave(code: int) -> NoReturn:
    """End this process, a rank's, at once: what C++ tears down after the last line of Python aborts now and then, on a busy
    machine ("terminate called without an active exception"), and torchrun would take the whole run for failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def told(error: BaseException) -> str:
    """Kind and first line of an error."""
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}".split("\n")[0]


@contextmanager
def join(timeout: float = WAIT) -> Iterator[Ranks]:
    """The ranks that torchrun started, as a process group for as long as the block; without torchrun, one rank alone.

    timeout: seconds that one rank waits for another. On CUDA, tensors go over NCCL and numbers over gloo, and each rank
    takes the GPU of its local number; without a GPU for each rank of this machine, all goes over gloo on the CPU.
    A process group that is there already is used, and stays.

    Raises InvalidRequest for settings of torchrun that lack something, RankError where not all ranks come in time.
    """
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield current()
        return
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        raise InvalidRequest(f"WORLD_SIZE is set and {', '.join(missing)} is not: start the ranks by torchrun")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if cuda:
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"the {os.environ['WORLD_SIZE']} ranks did not all come in {timeout:g} s: {told(error)}"
        ) from error
    try:
        yield (here := current())
        here.numbers(0)  # nobody closes connections that another still listens to
    except BaseException:
        if not cuda:  # closes the connections, so that nobody waits for this rank; NCCL would wait itself
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def current() -> Ranks:
    """This process among the ranks of the process group; one rank alone where torchrun started no others.

    Raises InvalidRequest where it did, and there is no process group yet.
    """
    if not dist.is_available() or not dist.is_initialized():
        if (others := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise InvalidRequest(
                f"torchrun started {others} ranks, but they have no process group yet: with kvviz.cache.sharded.join(): …"
            )
        return Ranks(device=torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else _CPU)
    nccl = "nccl" in str(dist.get_backend_config())
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else _CPU
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def heads_of(rank: int, ranks: int, kv_heads: int) -> range:
    """The KV heads of one rank. The first ranks have one more where it does not divide: 3 heads over 2 are 2 + 1.

    Fewer heads than ranks: every rank has one, and a head is on several ranks, which share its query heads.
    """
    if not 0 <= rank < ranks or kv_heads < 1:
        raise InvalidRequest(f"rank {rank} of {ranks} with {kv_heads} KV heads: ranks count from 0, heads from 1 up")
    if kv_heads < ranks:
        head = rank * kv_heads // ranks
        return range(head, head + 1)
    full, more = divmod(kv_heads, ranks)
    start = rank * full + min(rank, more)
    return range(start, start + full + (rank < more))


def queries_of(rank: int, ranks: int, kv_heads: int, query_heads: int) -> range:
    """The query heads of one rank: all that read its KV heads, or its part of them where others have that head, too.

    Raises InvalidRequest, on every rank alike, where query heads do not divide over KV heads or a rank would get none.
    """
    heads = heads_of(rank, ranks, kv_heads)
    if query_heads < 1 or query_heads % kv_heads:
        raise InvalidRequest(f"{query_heads} query heads do not divide over {kv_heads} KV heads")
    readers = query_heads // kv_heads  # of one KV head
    if kv_heads >= ranks:
        return range(heads.start * readers, heads.stop * readers)
    if (most := -(-ranks // kv_heads)) > readers:
        raise InvalidRequest(
            f"{ranks} ranks are too many: {most} of them would share a KV head that has {readers} query "
            f"head{'s' * (readers > 1)}; {query_heads} ranks are the most"
        )
    sharers = [other for other in range(ranks) if heads_of(other, ranks, kv_heads) == heads]
    part = heads_of(sharers.index(rank), len(sharers), readers)  # the same division once more
    return range(heads.start * readers + part.start, heads.start * readers + part.stop)


def named(heads: range) -> str:
    return f"head {heads.start}" if len(heads) == 1 else f"heads {heads.start}–{heads.stop - 1}"
