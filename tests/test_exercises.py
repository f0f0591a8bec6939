"""Exercises: right answers pass, each foreseen mistake gets its own sentence, unfinished ones raise nothing."""

import pytest
import torch

from kvviz import CachingAllocator, InvalidRequest, PagedKVCache, PoolExhausted, exercise
from kvviz.exercises import (
    allocator,
    cache_grows,
    debug_oom,
    fragmentation,
    page_size,
    pages,
    reading_pages,
    real_model,
    start_here,
    windows,
)
from kvviz.exercises.trial import Trial


@pytest.fixture
def trace():
    a = CachingAllocator(1 << 30)
    held = a.malloc(30 << 20)
    a.free(a.malloc(12 << 20))
    a.malloc(3 << 20)
    a.free(held)
    return a.trace


def test_right_answers(trace, capsys):
    peak = trace.at(trace.peak_event + 1)
    assert exercise("00.1").check(377_487_360)
    assert exercise("00.2").check(23_040)
    assert exercise("00.3").check(peak.reserved - peak.active, trace)
    assert capsys.readouterr().out.count("right.") == 3


@pytest.mark.parametrize(
    ("number", "answer", "told"),
    [
        ("00.1", None, "no answer yet"),
        ("00.1", ..., "no answer yet"),
        ("00.1", 46_080, "one token"),
        ("00.1", 377_487_360 // 2, "half"),
        ("00.1", 377_487_360 * 3, "KV heads"),
        ("00.1", 1, "less"),
        ("00.1", "many", "could not use an answer of type str"),
        ("00.2", 46_080, "fp32"),
        ("00.2", 1, "less"),
    ],
)
def test_mistakes(number, answer, told, capsys):
    assert not exercise(number).check(answer)
    assert told in capsys.readouterr().out


def test_moments_beside_the_peak(trace, capsys):
    def cached(state):
        return state.reserved - state.active

    assert not exercise("00.3").check(cached(trace.at(-1)), trace)
    assert "end of the run" in capsys.readouterr().out
    assert not exercise("00.3").check(cached(trace.at(trace.peak_event + 1)) + 1, trace)


def test_hints_come_one_at_a_time_and_end(capsys):
    task = exercise("00.3")
    for _ in range(4):
        task.hint()
    out = capsys.readouterr().out
    assert "Hint 1 of 3" in out and "Hint 3 of 3" in out and "notebooks/solutions/00.ipynb" in out


def test_each_is_complete_and_shows_itself():
    lessons = (
        start_here, cache_grows, allocator, fragmentation, windows, pages, page_size, real_model, reading_pages
    )  # fmt: skip
    for task in [task for lesson in lessons for task in lesson.exercises()]:
        assert task.hints and 1 <= task.difficulty <= 3 and task.minutes > 0 and task.title in task._repr_html_()
        assert task.question.split("\n")[0] in repr(task)


def test_unknown():
    with pytest.raises(InvalidRequest, match=r"99\.9"):
        exercise("99.9")


def test_the_cache_grows(capsys):
    rows = torch.arange(2000.0).reshape(1, 1000, 2)
    assert exercise("01.1").check(2_147_483_648)
    assert exercise("01.2").check(6_275)
    assert exercise("01.3").check(rows[:, -100:].clone(), rows)
    assert not exercise("01.3").check(rows[:, -100:], rows)
    assert "8,000 bytes alive for 800" in capsys.readouterr().out
    assert not exercise("01.3").check(rows[:, :100].clone(), rows)
    assert not exercise("01.2").check(50)


def test_the_allocator_exercises_agree_with_the_allocator(capsys):
    a = CachingAllocator(1 << 30)
    for size in (700 << 10, 3 << 20, 12 << 20):
        a.malloc(size)
    assert exercise("02.1").check(a.reserved >> 20)
    b = CachingAllocator(1 << 30)
    b.free(b.malloc(30 << 20))  # one segment for all of them
    blocks = [b.malloc(size << 19) for size in (16, 3, 10, 3, 12, 3, 13)]  # 8, 5 and 6 MiB, walls between, a lid
    for k in (0, 2, 4):
        b.free(blocks[k])
    assert exercise("02.2").check({blocks[0]: 8, blocks[2]: 5, blocks[4]: 6}.get(b.malloc(11 << 19)))

    def pins(allocator):
        blocks = [allocator.malloc((1 << 20) + 512) for _ in range(95)]  # 19 to a segment of 20 MiB
        for k, block in enumerate(blocks):
            if k % 19:
                allocator.free(block)

    def keeps_too_much(allocator):
        allocator.malloc(200 << 20)

    def lets_go(allocator):
        allocator.free(allocator.malloc(200 << 20))

    assert exercise("02.3").check(pins)
    assert not exercise("02.3").check(keeps_too_much)
    assert "still allocated" in capsys.readouterr().out
    assert not exercise("02.3").check(lets_go)
    assert "gave 200 MiB back" in capsys.readouterr().out


def test_fragmentation(capsys):
    assert exercise("03.1").check(800)
    assert not exercise("03.1").check(798)
    assert not exercise("03.1").check(801)
    assert not exercise("03.1").check(800.9)
    assert exercise("03.2").check("expandable_segments:True")
    assert exercise("03.2").check("max_split_size_mb:300")
    assert not exercise("03.2").check("max_split_size_mb:20")
    assert not exercise("03.2").check("garbage_collection_threshold:0.5,per_process_memory_fraction:0.99")
    assert not exercise("03.2").check("nonsense:1")
    assert "refuses" in capsys.readouterr().out

    def large_last(allocator):
        blocks = [allocator.malloc(270 << 20) for _ in range(2)]
        for block in blocks:
            allocator.free(block)
        allocator.free(allocator.malloc(530 << 20))

    def as_before(allocator):
        allocator.free(allocator.malloc(530 << 20))
        allocator.malloc(270 << 20)
        allocator.malloc(270 << 20)

    assert exercise("03.3").check(large_last)
    assert not exercise("03.3").check(as_before)
    assert not exercise("03.3").check(lambda allocator: allocator.malloc(530 << 20))


def test_windows(capsys):
    assert exercise("04.1").check(3000, 513)
    for answer, told in (
        ((512, 513), "keep alive"), ((3000, 512), "cut from something"), ((3000, 3001), "not to the 3,000"),
        ((3000, 3000), "refers to the old one"), ((3000, 7), "not 7"), ((2999, 513), "not 2,999"),
    ):  # fmt: skip
        assert not exercise("04.1").check(*answer)
        assert told in capsys.readouterr().out

    def off_by_one(done, window, page_size):
        return max(0, done - window) // page_size

    assert exercise("04.2").check(lambda done, window, page_size: max(0, done - window + 1) // page_size)
    assert not exercise("04.2").check(off_by_one)
    assert "more may go" in capsys.readouterr().out
    assert not exercise("04.2").check(lambda done, window, page_size: max(0, done - window + 2) // page_size)
    assert "still reads" in capsys.readouterr().out

    def in_order(buffer, seen):
        oldest = seen % len(buffer)
        return buffer[:seen] if seen <= len(buffer) else torch.cat([buffer[oldest:], buffer[:oldest]])

    assert exercise("04.3").check(in_order)
    assert not exercise("04.3").check(lambda buffer, seen: buffer)
    assert "rows of 2 numbers" in capsys.readouterr().out
    assert not exercise("04.3").check(lambda buffer, seen: buffer[: min(seen, len(buffer))])
    assert "in the order" in capsys.readouterr().out


class Sketch:
    """A sketch of pages without a fault."""

    def __init__(self, page_size):
        self.page_size, self.pages, self.length, self.first = page_size, [], 0, 0

    def slot(self):
        return (self.first + self.length) % self.page_size

    def append(self, key, value):
        if not self.pages or self.slot() == 0:
            self.pages.append((torch.full((1, self.page_size, 1), -1.0), torch.full((1, self.page_size, 1), -1.0)))
        for side, new in zip(self.pages[-1], (key, value)):
            side[:, self.slot()] = new
        self.length += 1

    def keep(self, tokens):
        drop = max(0, self.length - tokens)
        gone, self.first = divmod(self.first + drop, self.page_size)
        del self.pages[:gone]
        self.length -= drop
        self.rollback(0)

    def rollback(self, tokens):
        self.length -= tokens
        del self.pages[-(-(self.first + self.length) // self.page_size) if self.length else 0 :]

    def read(self):
        empty = torch.empty(1, 0, 1)
        return tuple(
            torch.cat([empty, *(page[k] for page in self.pages)], 1)[:, self.first : self.first + self.length]
            for k in (0, 1)
        )


class Cuts(Sketch):
    """Throws the newest tokens away, and counts the slots from the front."""

    def keep(self, tokens):
        super().keep(tokens)
        self.first = 0


class Swaps(Sketch):
    def read(self):
        return super().read()[::-1]


def test_pages(capsys):
    assert exercise("05.1").check(6)
    for answer in (12, 3, 7, 5, 4, 40):
        assert not exercise("05.1").check(answer)
    assert exercise("05.2").check(
        lambda t, size, first, end: [t[k // size] * size + k % size for k in range(first, end)]
    )
    assert not exercise("05.2").check(lambda t, size, first, end: [t[0] * size + k for k in range(first, end)])
    assert "it says" in capsys.readouterr().out
    assert exercise("05.3").check(Sketch)
    for wrong in (Cuts, Swaps):
        assert not exercise("05.3").check(wrong)
        assert "should come back" in capsys.readouterr().out


def test_a_trial_says_what_came_back_and_draws_what_lies_in_the_pages():
    right, wrong = (Trial(make, "append 10, keep 5, append 2, rollback 1") for make in (Sketch, Cuts))
    assert right.same and right.got == [5, 6, 7, 8, 9, 10] and right.pages == right.pages_wanted == 2
    assert not wrong.same and wrong.got == [4, 5, 6, 7, 8, 10] and repr(wrong).startswith("append 10, keep 5")
    for trial in (right, wrong):
        drawn, should = trial.log.at(len(trial.log), 0), trial.log.at(len(trial.log), 1)
        assert should.logical == 6 and should.tables[0][0] == -1
        assert drawn.logical == len(trial.got) and drawn.used == trial.pages
    assert [name for _, name in right.log.marks] == ["append 10", "keep 5", "append 2", "rollback 1"]
    assert right.log.at(len(right.log), 0).low.max() == 1  # token 4 is hatched in both
    assert wrong.log.at(len(wrong.log), 0).low.max() == 0
    assert "values of other tokens" in repr(Trial(Swaps, "append 3"))
    assert Trial(Sketch, "append 8, keep 0, append 3").same


def test_a_trial_of_what_raises_or_of_no_program():
    class Raises(Sketch):
        def read(self):
            raise RuntimeError("nothing to read")

    trial = Trial(Raises, "append 1")
    assert trial.got is None and not trial.same and "an error is raised" in repr(trial)
    for program in ("", "append", "append x", "forget 3", "append 3 keep 2"):
        with pytest.raises(InvalidRequest, match="a step is one of"):
            Trial(Sketch, program)


def test_page_size(capsys):
    def largest_page(lengths, limit):
        def waste(size):
            slots = sum(-(-n // size) * size for n in lengths)
            return 100 * (slots - sum(lengths)) / slots

        return max(size for size in page_size.POWERS if waste(size) <= limit)

    def mean_of_each(lengths, limit):
        def waste(size):
            return sum(100 * (1 - n / (-(-n // size) * size)) for n in lengths) / len(lengths)

        return max(size for size in page_size.POWERS if waste(size) <= limit)

    def largest_window(pages, page_size, sequences):
        each = pages // sequences
        return (each - 1) * page_size + 1 if each else 0

    assert exercise("06.1").check(19, 83)
    for wrong, told in (
        ((18, 19), "each has its own"),
        ((20, 83), "not 20"),
        ((19, 1216), "hold no token"),
        ((19, 82), "82"),
    ):
        assert not exercise("06.1").check(*wrong)
        assert told in capsys.readouterr().out
    assert exercise("06.2").check(largest_page)
    assert not exercise("06.2").check(mean_of_each)
    assert not exercise("06.2").check(lambda lengths, limit: 16)
    assert not exercise("06.2").check(lambda lengths, limit: None)
    assert "your function says None" in capsys.readouterr().out
    assert exercise("06.3").check(largest_window)
    assert not exercise("06.3").check(lambda pages, page_size, sequences: pages // sequences * page_size)
    assert "first slot of a page" in capsys.readouterr().out
    assert not exercise("06.3").check(lambda pages, page_size, sequences: 1)
    assert "your function says 1" in capsys.readouterr().out


@pytest.mark.parametrize(("pages", "size", "sequences"), [(1, 16, 1), (8, 1, 2), (7, 4, 2), (16, 8, 4)])
def test_the_largest_window_is_the_largest_for_a_real_cache(pages, size, sequences):
    window = (pages // sequences - 1) * size + 1

    def runs(window):
        cache = PagedKVCache(1, 1, 8, page_size=size, pages=pages, window=window, batch=sequences)
        one = torch.zeros(sequences, 1, 1, 8)
        for _ in range(3 * pages * size + 2):
            cache.append(0, one, one)

    runs(window)
    with pytest.raises((PoolExhausted, InvalidRequest)):
        runs(window + 1)


def test_real_model(capsys):
    row = 2 * 8 * 64 * 2
    assert exercise("07.1").check(12 * row * 32_768 + 12 * row * 128)
    assert exercise("07.2").check(66)
    for number, answer, told in (
        ("07.1", 24 * row * 32_768, "without the windows"),
        ("07.1", 24 * row * 128, "all layers had the window"),
        ("07.1", 12 * row * 32_768, "hold something"),
        ("07.1", 12 * (row // 2) * (32_768 + 128), "both kept"),
        ("07.1", 24 * row * (32_768 + 128), "fp32"),
        ("07.1", 1, "less than"),
        ("07.2", 36, "without the padding"),
        ("07.2", 22, "one of the three"),
        ("07.2", 69, "last new token"),
        ("07.2", 100, "too many"),
    ):
        assert not exercise(number).check(answer)
        assert told in capsys.readouterr().out

    def sizes(seen, new, window, past=1):
        first = max(0, seen - window + past)
        return seen + new - first, first

    assert exercise("07.3").check(sizes)
    assert exercise("07.3").check(lambda *case: list(sizes(*case)))
    assert not exercise("07.3").check(lambda *case: sizes(*case, past=0))
    assert "one off" in capsys.readouterr().out
    assert not exercise("07.3").check(lambda seen, new, window: (seen + new, 0))
    assert "it should be (8, 13), not (21, 0)" in capsys.readouterr().out
    assert not exercise("07.3").check(lambda seen, new, window: None)


def test_a_cache_gives_what_the_exercise_asks_for():
    for seen, new in ((0, 5), (3, 1), (20, 1), (7, 1), (8, 1), (5, 6), (20, 10)):
        cache = PagedKVCache(1, 1, 4, page_size=4, window=8)
        tokens = torch.arange(float(seen + new)).reshape(1, 1, -1, 1).expand(1, 1, seen + new, 4)
        if seen:
            cache.append(0, tokens[:, :, :seen], tokens[:, :, :seen])
        keys, _ = cache.append(0, tokens[:, :, seen:], tokens[:, :, seen:])
        first = max(0, seen - 8 + 1)
        assert (keys.shape[2], int(keys[0, 0, 0, 0])) == (seen + new - first, first)


def test_reading_pages(capsys):
    assert exercise("08.1").check(46_080 * 4096)
    assert exercise("08.2").check(16)
    for number, answer, told in (
        ("08.1", 46_080, "one token"),
        ("08.1", 46_080 * 4096 // 30, "one layer"),
        ("08.1", 46_080 * 4096 // 2, "values"),
        ("08.1", 46_080 * 4096 * 2, "what is read"),
        ("08.1", 5, "less than"),
        ("08.2", 17, "power of two"),
        ("08.2", 0, "power of two"),
        ("08.2", 32, "5.1%"),
        ("08.2", 8, "16 would do"),
    ):
        assert not exercise(number).check(answer)
        assert told in capsys.readouterr().out

    def merge(a, b):
        high = torch.maximum(a[0], b[0])
        fade = (a[0] - high).exp(), (b[0] - high).exp()
        return high, a[1] * fade[0] + b[1] * fade[1], a[2] * fade[0] + b[2] * fade[1]

    def in_place(a, b):
        result = merge(a, b)
        a[1].mul_(2)
        return result

    def large(a, b):
        high = torch.maximum(a[0], b[0])
        parts = [(x * a[0].exp() + y * b[0].exp()) / high.exp() for x, y in zip(a[1:], b[1:])]
        return high, *parts

    def divided(a, b):
        high, total, out = merge(a, b)
        return high, total, out / total

    assert exercise("08.3").check(merge)
    for wrong, told in (
        (large, "overflows"), (divided, "not divided"), (in_place, "changes the tensors"), (lambda a, b: a, "larger of the two"),
        (lambda a, b: (torch.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]), "total is off"),
        (lambda a, b: merge(a, b)[2], "three tensors"), (lambda a, b: (*merge(a, b)[:2], a[2][:, :1]), "shapes"),
    ):  # fmt: skip
        assert not exercise("08.3").check(wrong)
        assert told in capsys.readouterr().out


def test_10_1_and_10_2(capsys):
    assert exercise("10.1").check(2 * 32 * 8 * 16 * 130) and exercise("10.2").check(32)
    for answer, told in (
        (2 * 32 * 8 * 16 * 128, "the scales take memory"), (32 * 8 * 16 * 130, "Keys and values both"),
        (2 * 8 * 16 * 130, "one layer"), (2 * 32 * 8 * 130, "one token"), (2 * 32 * 8 * 16 * 129, "two bytes"),
        (2 * 32 * 8 * 16 * 256, "bf16 page"), (7, "less than"), (10**9, "more than"),
    ):  # fmt: skip
        assert not exercise("10.1").check(answer)
        assert told in capsys.readouterr().out
    for answer, told in ((24, "power of two"), (16, "34.4%"), (64, "pages of 32 would do, too")):
        assert not exercise("10.2").check(answer)
        assert told in capsys.readouterr().out


def test_10_3(capsys):
    def quantize(x, bits, steps=0, rounded=torch.round, guard=True):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        scale = (high - low) / (2**bits - 1 + steps)
        return rounded((x - low) / (scale.where(scale > 0, 1) if guard else scale)), scale, low

    def symmetric(x, bits):
        scale = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (x / scale.where(scale > 0, 1)).round(), scale, torch.zeros_like(scale)

    def in_place(x, bits):
        return quantize(x.mul_(2), bits)

    task = exercise("10.3")
    assert task.check(quantize)
    for wrong, told in (
        (lambda x, bits: quantize(x, bits, guard=False), "division by 0"), (symmetric, "codes should be 0 … 15; they are -7"),
        (lambda x, bits: quantize(x, bits, steps=1), "they are 0 … 16"),
        (lambda x, bits: quantize(x, bits, steps=-1), "not all rows use the codes 0 and 15"),
        (lambda x, bits: quantize(x, bits, rounded=torch.floor), "more than half a scale"),
        (lambda x, bits: quantize(x, bits, rounded=lambda y: y), "whole numbers"), (in_place, "changes the tensor"),
        (lambda x, bits: quantize(x, bits)[0], "three tensors"), (lambda x, bits: quantize(x.T, bits), "shapes"),
        (lambda x, bits: (*quantize(x, bits)[:2], quantize(x, bits)[2] + 1e-9 * torch.ones(6, 1) + 1e-6), "exactly"),
    ):  # fmt: skip
        assert not task.check(wrong)
        assert told in capsys.readouterr().out


def test_11_1(capsys):
    assert exercise("11.1").check(32)
    assert not exercise("11.1").check(64) and not exercise("11.1").check(16)
    assert "Too many" in (told := capsys.readouterr().out) and "Too few" in told


def test_11_2(capsys):
    def slide(kept, rows):
        return torch.cat([kept, rows], dim=2)[:, :, -debug_oom.WINDOW :]

    task = exercise("11.2")
    assert task.check(lambda kept, rows: slide(kept, rows).clone())
    assert not task.check(slide) and not task.check(lambda kept, rows: kept)
    assert not task.check(lambda kept, rows: slide(rows, kept).clone()) and not task.check(lambda kept, rows: 3)
    told = capsys.readouterr().out
    assert "The diagnosis still says: sliced, not cloned" in told and "the last 64 tokens of both" in told


def test_11_3(capsys):
    def no_graph(loss, weight, texts):
        with torch.inference_mode():
            return [loss(weight, text) for text in texts]

    task = exercise("11.3")
    assert task.check(no_graph) and task.check(lambda loss, weight, texts: [loss(weight, t).detach() for t in texts])
    assert not task.check(lambda loss, weight, texts: [loss(weight, t) for t in texts])
    assert not task.check(lambda loss, weight, texts: no_graph(loss, weight, texts)[1:])
    told = capsys.readouterr().out
    assert "The diagnosis still says: kept by autograd" in told and "one score a text" in told


def test_12_1(capsys):
    from kvviz import plan

    most = plan("llama-3-8b", "24GiB", 8192).tokens_that_fit
    assert exercise("12.1").check(most) and most % 16 == 0
    assert not exercise("12.1").check(most + 16) and not exercise("12.1").check(16) and not exercise("12.1").check(196_608)
    told = capsys.readouterr().out
    assert "Too many" in told and "Too few" in told and "what about the weights?" in told


def test_12_2(capsys):
    from kvviz.cache.ranks import heads_of

    task = exercise("12.2")
    assert task.check(heads_of)
    assert not task.check(lambda rank, ranks, kv_heads: range(kv_heads))
    assert not task.check(lambda rank, ranks, kv_heads: range(kv_heads) if rank == 0 else range(0))
    told = capsys.readouterr().out
    assert "Every head should have one rank" in told and "two more than another" in told


def test_09_1(capsys):
    from kvviz.serve import Engine
    from tests.tiny_models import model

    engine = Engine(model("llama"), 64, 16, prefix_cache=True)
    for k in range(5):
        engine.add([*range(1, 51), *range(1, 51), *[60 + k] * 10], 20)
    engine.run()
    task = exercise("09.1")
    assert task.check(engine.metrics.peak_used)
    for answer, told in (
        (45, "without sharing"), (17, "cannot be shared"), (22, "nobody shares"), (9, "different"), (30, "too many"),
        (8, "too few"),
    ):  # fmt: skip
        assert not task.check(answer)
        assert told in capsys.readouterr().out


def test_09_2(capsys):
    import heapq

    from kvviz.serve import Engine
    from tests.tiny_models import model

    def steps_of(lengths, width):
        free = [0] * width
        for length in lengths:
            heapq.heapreplace(free, free[0] + length)
        return max(free)

    task = exercise("09.2")
    assert task.check(steps_of)
    for lengths, width in (([9, 2, 5, 1, 7, 3], 3), ([4, 4, 4], 2), ([6, 1], 4)):  # the engine agrees
        engine = Engine(model("llama"), 64, 4, max_running=width)
        for k, length in enumerate(lengths):
            engine.add([k + 1, 5], length)
        engine.run()
        assert len(engine.metrics.steps) == steps_of(lengths, width)
    assert not task.check(lambda lengths, width: sum(max(lengths[k : k + width]) for k in range(0, len(lengths), width)))
    assert "until a whole batch is done" in capsys.readouterr().out
    assert not task.check(lambda lengths, width: 3) and not task.check(lambda lengths, width: None)


def test_09_3(capsys):
    def found(prompt, known, page_size, last=1):
        asked, longest = prompt[: len(prompt) - last], 0
        for old in known:
            whole = len(old) // page_size * page_size
            equal = next((k for k in range(whole) if old[: k + 1] != asked[: k + 1]), whole)
            longest = max(longest, equal // page_size * page_size)
        return longest

    task = exercise("09.3")
    assert task.check(found)
    assert not task.check(lambda *case: found(*case, last=0))
    assert "The last token" in capsys.readouterr().out
    assert not task.check(lambda prompt, known, page_size: 0)
    assert not task.check(lambda prompt, known, page_size: found(prompt, known, 1))
    assert "tokens are found, it says" in capsys.readouterr().out
