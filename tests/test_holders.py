"""holders() and delta(): who keeps memory alive, and what a few lines changed."""

import gc
import weakref

import pytest
import torch

from kvviz import RecordingError, record
from kvviz.memory.delta import delta
from kvviz.memory.holders import held_bytes, holders

MIB = 1 << 20


class Thing:
    pass


def places(thing) -> set[str]:
    return {holder.where for holder in holders(thing)}


def test_variables_items_and_attributes():
    cache, kept, model = Thing(), [], Thing()
    cache.keys = torch.zeros(1000)
    kept += [None, {"deep": cache}]
    model.cache = cache
    assert {"cache", 'kept[1]["deep"]', "model.cache"} <= places(cache)
    del kept[1]["deep"]
    model.cache = None
    assert not {'kept[1]["deep"]', "model.cache"} & places(cache)
    assert all(holder.bytes == 4000 for holder in holders(cache))


def test_a_generate_output_keeps_its_cache_in_two_ways():
    """After out.cache = None the item of the same name still holds it."""
    from transformers import DynamicCache
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8, 4), 0)
    field = "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"
    out = GenerateDecoderOnlyOutput(sequences=torch.zeros(1, 2), **{field: cache})
    assert any(where.startswith("out") for where in places(cache))
    setattr(out, field, None)  # in vain: the item stays
    assert f'out["{field}"]' in places(cache)
    out[field] = None
    assert not any(where.startswith("out") for where in places(cache))
    assert holders(cache)[0].bytes == 2 * 2 * 8 * 4 * 4


def test_a_view_holds_the_whole_storage():
    keys = torch.zeros(1, 2, 100, 4)
    window = keys[:, :, -10:]
    assert held_bytes(window) == 3200
    views = {holder.where: holder for holder in holders(keys)}
    assert views["window"].kind.startswith("view (1, 2, 10, 4)") and views["window"].bytes == 3200
    window = window.clone()
    assert held_bytes(window) == 320 and "window" not in places(keys)


def test_closures():
    tensor = torch.zeros(10)

    def use():
        return tensor

    assert any(holder.kind == "closure of use()" for holder in holders(tensor))


def test_delta_of_a_few_lines():
    keep = []
    with delta("cpu") as d:
        keep.append(torch.empty(3 * MIB, dtype=torch.uint8))
        torch.empty(5 * MIB, dtype=torch.uint8)
    assert d.difference.allocated == d.difference.held == 3 * MIB
    assert "allocated" in repr(d) and "fed by a CPU run" in repr(d)
    with delta("cpu") as d:
        keep.clear()
        gc.collect()
    assert d.difference.allocated == d.difference.held == -3 * MIB
    assert d.difference.reserved == 0


def test_a_slice_frees_nothing_and_its_clone_does():
    keys = torch.zeros(MIB)
    with delta("cpu") as d:
        keys = keys[-1000:]
    assert d.difference.held == 0
    with delta("cpu") as d:
        keys = keys.clone()
    assert d.difference.held == 4000 - 4 * MIB


def test_delta_says_what_it_cannot():
    d = delta("cpu")
    with pytest.raises(RecordingError, match="is over"):
        _ = d.difference
    with record(), pytest.raises(RecordingError, match="already running"), d:
        pass


def test_asking_keeps_nothing_alive():
    """A function's variables are read by way of a copy that Python before 3.13 keeps in the frame."""
    ends = []

    def lesson(ask):
        cache = torch.zeros(1000)
        kept = [torch.zeros(100, 100)[:2]]  # a view: then a recording looks through all references
        weakref.finalize(cache.untyped_storage(), ends.append, "cache")
        weakref.finalize(kept[0].untyped_storage(), ends.append, "kept")
        ask(cache)
        assert not ends
        del cache, kept
        gc.collect()
        assert sorted(ends) == ["cache", "kept"]
        ends.clear()

    def recorded(cache):
        with record("cpu"):
            cache.add_(1)

    lesson(holders)
    lesson(recorded)


def test_a_function_that_called_locals_keeps_its_copy():
    def lesson():
        cache, copy = torch.zeros(1000), locals()
        holders(cache)
        return copy

    assert set(lesson()) >= {"cache"}
