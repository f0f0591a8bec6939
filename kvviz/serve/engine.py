"""Engine: requests join and leave a running batch at every step of the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from operator import index
from typing import Any

import torch

from kvviz.cache.attach import text_config
from kvviz.cache.pagelog import PageLog, PoolInfo
from kvviz.cache.pages import PagePool
from kvviz.cache.store import Slab
from kvviz.counts import natural, positive
from kvviz.errors import CorruptCache, InvalidRequest, PoolExhausted
from kvviz.origin import of_pages
from kvviz.serve.batch import attending, pack, spec_of
from kvviz.serve.metrics import Metrics, Step, stored_tokens
from kvviz.serve.request import Request, Sample
from kvviz.serve.scheduler import Scheduler, Work


class Engine:
    """Serve many requests with one model, always taking the likeliest token.

        engine = kvviz.serve.Engine(model, pages=64, page_size=16)
        engine.add(prompt_ids, max_new_tokens=32)        # any number, at any time
        engine.run()                                     # the outputs; or `for step in engine`, or engine.step()

    pages, page_size: the memory for keys and values, taken at once. max_running: samples in flight at most.
    step_tokens: tokens of a step at most; longer prompts are read in chunks beside the others' decoding.
    prefix_cache: freed pages keep their tokens until they are used anew, so that prompts which begin alike share them.
    clock: what times are read from, in seconds.

    Raises InvalidRequest for a model that does not have plain, full attention, OutOfMemory where the pool does not fit.
    """

    def __init__(
        self,
        model: Any,
        pages: int,
        page_size: int = 16,
        max_running: int = 16,
        step_tokens: int = 256,
        prefix_cache: bool = True,
        log: PageLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        max_running, step_tokens = positive("max_running", max_running), positive("step_tokens", step_tokens)
        if step_tokens < max_running:
            raise InvalidRequest(f"step_tokens={step_tokens:,} leaves some of {max_running:,} running samples no token")
        self.model, self.config, spec = model, text_config(model), spec_of(model)
        pages, page_size = positive("pages", pages), positive("page_size", page_size)
        self.log, self.clock = PageLog.of(log), clock
        assert spec.device is not None
        if not self.log.pools:
            self.log.origin = of_pages(spec.device)
        self.store = Slab(spec, pages, page_size)
        info = PoolInfo("pages", pages, page_size, spec.token_bytes, spec.layers)
        self.pool = PagePool(pages, page_size, log=self.log, info=info)
        self.scheduler = Scheduler(self.pool, max_running, step_tokens, bool(prefix_cache))
        self.metrics = Metrics()

    def __repr__(self) -> str:
        s = self.scheduler
        return f"<Engine: {len(s.running):,} run, {len(s.waiting):,} wait, {self.pool.free_count:,} pages free>"

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def kept_tensors(self) -> list[torch.Tensor]:
        """Tensors whose storages are all that it holds, beside the model; the recorder asks for them."""
        return self.store.kept_tensors()

    @property
    def held_bytes(self) -> int:
        return self.store.held_bytes

    def add(self, prompt_ids: Any, max_new_tokens: int, n: int = 1, stop: int | None = None) -> Request:
        """Queue a request. prompt_ids: integers, or a tensor of them [tokens] or [1, tokens].

        n: samples. The first goes the likeliest way, number k begins with the k-th likeliest token; all share the
        prompt's pages until they write into one. stop: a token that ends a sample early.

        Raises InvalidRequest for what makes no sense, PoolExhausted where a sample would not fit the pool even alone.
        """
        prompt = self._prompt(prompt_ids)
        request = Request(len(self.metrics.requests), prompt, positive("max_new_tokens", max_new_tokens))
        request.n, request.stop = positive("n", n), None if stop is None else natural("stop", stop)
        scheduler, longest = self.scheduler, getattr(self.config, "max_position_embeddings", None)
        if request.n > min(scheduler.max_running, self.config.vocab_size):
            raise InvalidRequest(f"n={request.n:,} samples, and {scheduler.max_running:,} may run: raise max_running")
        told = f"{len(prompt):,} prompt tokens and {max_new_tokens:,} new ones"
        if longest is not None and request.most_stored > longest:
            raise InvalidRequest(f"{told}: the model has {longest:,} positions")
        if not scheduler.can_ever_run(request):
            needed = scheduler.pages_for(request.most_stored)
            raise PoolExhausted(f"{told} take {needed:,} pages, the pool has {self.pool.pages:,}: raise pages")
        request.bound = self._bound(request)
        request.added = self.clock()
        self.metrics.requests.append(request)
        scheduler.add(request.samples[0])
        return request

    def cancel(self, request: Request) -> bool:
        """Stop a request between two steps. Its pages are free at once; what it has generated stays in its outputs.

        False: there was nothing to stop, as it is done. Raises InvalidRequest for what this engine does not serve.
        """
        if request not in self.metrics.requests:
            raise InvalidRequest(f"{request!r} was not added to this engine")
        if request.done:
            return False
        for sample in request.samples:
            self.scheduler.drop(sample)
        request.cancelled, request.finished, request.finished_step = True, self.clock(), len(self.metrics.steps)
        return True

    def _prompt(self, ids: Any) -> list[int]:
        if isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.shape[0] == 1:
            ids = ids[0]
        try:
            found = [index(token) for token in ids]
        except TypeError:
            found = []
        if not found or not all(0 <= token < self.config.vocab_size for token in found):
            last = self.config.vocab_size - 1
            raise InvalidRequest(f"prompt_ids must be token ids 0 … {last}, at least one, of one sequence")
        return found

    def _bound(self, request: Request) -> int:
        """The step in which it is finished at the latest, whatever comes after it.

        The oldest always runs, and reads at least what one token for each of the others leaves of a step. So, once it is
        the oldest, it is read through in tokens / (step_tokens - others) steps, and a step for each token it generates.
        """
        least = self.scheduler.step_tokens - self.scheduler.max_running + 1
        ahead = [other for other in self.metrics.requests if not other.done]
        return len(self.metrics.steps) + sum(
            each.n * (-(-each.most_stored // least) + each.max_new_tokens) for each in [*ahead, request]
        )

    # running

    def step(self) -> Step:
        """One call of the model for all that run. Raises what the model raises, and then the step did not happen.

        Raises InvalidRequest where nothing is left to do.
        """
        if not self.has_work:
            raise InvalidRequest("no request is left: add one")
        began, scheduler = self.clock(), self.scheduler
        before = scheduler.preemptions
        work = scheduler.schedule()
        used, stored = self.pool.used_count, stored_tokens(self.pool)
        tokens = sum(item.end - item.first for item in work)
        decode = sum(item.sample.remaining == 0 and item.end - item.first == 1 for item in work)
        finished = self._take_tokens(work, self._compute(work))
        step = Step(
            number=len(self.metrics.steps),
            seconds=self.clock() - began,
            running=len(work),
            waiting=len(scheduler.waiting),
            prefill=tokens - decode,
            decode=decode,
            used=used,
            stored=stored,
            waste=1 - stored / (used * self.pool.page_size),
            preempted=scheduler.preemptions - before,
            finished=tuple(finished),
        )
        m = self.metrics
        m.steps.append(step)
        m.hit_tokens, m.preemptions = scheduler.hit_tokens, scheduler.preemptions
        m.recomputed_tokens = scheduler.recomputed_tokens
        return step

    def __iter__(self) -> Iterator[Step]:
        """Step by step until nothing is left to do; requests may be added in between."""
        while self.has_work:
            yield self.step()

    def run(self) -> list[list[int]]:
        """Do all that is left. Returns the generated ids of each request that was unfinished, in order: a list a sample."""
        requests = [request for request in self.metrics.requests if not request.done]
        for _ in self:
            pass
        return [output for request in requests for output in request.outputs]

    def _compute(self, work: list[Work]) -> torch.Tensor:
        """Logits [sequences, vocabulary] of the last token of each."""
        try:
            with torch.inference_mode(), attending(self.config):
                for layer in range(self.store.spec.layers):  # before anything is written: a step that fails is undone
                    for item in work:
                        self.store.copy(layer, item.copies)
                logits: torch.Tensor = self.model(**pack(work, self.store)).logits[0]
        except BaseException:
            self.scheduler.undo(work)
            raise
        return logits

    def _take_tokens(self, work: list[Work], logits: torch.Tensor) -> list[Request]:
        """A new token for each sample whose known ones are all read; returns the requests that are done with that."""
        best = logits.argmax(-1).tolist()
        now = self.clock()
        for item, row, token in zip(work, logits, best, strict=True):
            sample, request = item.sample, item.sample.request
            if sample.remaining:
                continue
            grown = [sample]
            if request.first_token is None:
                request.first_token = now
                if request.n > 1:
                    firsts = row.topk(request.n).indices.tolist()
                    grown += self.scheduler.fork(sample, [t for t in firsts if t != token][: request.n - 1])
            sample.tokens.append(token)
            for each in grown:
                if each.ended:
                    self.scheduler.finish(each)
        requests = {item.sample.request.number: item.sample.request for item in work}
        done = [r for r in requests.values() if len(r.samples) == r.n and all(s.ended for s in r.samples)]
        for request in done:
            request.finished, request.finished_step = now, len(self.metrics.steps)
        return done

    # invariants

    def check(self) -> None:
        """Walk pages, tables, queues and bounds. Raises CorruptCache, saying the difference."""
        self.pool.check()
        self.scheduler.check()
        self.store.check(self.pool)
        for sample in self.scheduler.running:
            if not 0 < sample.remaining:
                raise CorruptCache(f"{sample} runs with nothing to compute")
        late = [r for r in self.metrics.requests if not r.done and len(self.metrics.steps) >= r.bound]
        if late:
            raise CorruptCache(
                f"{late[0]} starves: its bound was step {late[0].bound}, this is {len(self.metrics.steps)}"
            )

    def samples(self) -> list[Sample]:
        """Those that run, oldest first."""
        return list(self.scheduler.running)
