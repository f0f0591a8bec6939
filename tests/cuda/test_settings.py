"""PYTORCH_CUDA_ALLOC_CONF: kvviz accepts what PyTorch accepts, refuses what it refuses, and understands it alike."""

import pytest

from kvviz import CachingAllocator, InvalidRequest
from kvviz.memory.settings import UNLIMITED, parse
from tests.cuda_stub.oracle import in_child

# Each of these alone. Left out on purpose: "[256:2]]" and hexadecimal fractions, which PyTorch takes and kvviz refuses.
WHOLE = """
max_split_size_mb max_split_size_mb: max_split_size_mb:abc max_split_size_mb:19 max_split_size_mb:20 max_split_size_mb:0
max_split_size_mb:64.5 max_split_size_mb:64abc max_split_size_mb:99999999999999999999 max_split_size_mb:+64
max_split_size_mb:0x40 max_split_size_mb:064 max_split_size_mb:6_4 max_split_size_mb:[64] max_split_size_mb:64:32
max_split_size_mb:'64' max_split_size:64 Max_split_size_mb:64 max_split_size_mb=64
large_segment_size_mb:0 large_segment_size_mb:1 large_segment_size_mb:10 large_segment_size_mb:11
large_segment_size_mb:19 large_segment_size_mb:20 large_segment_size_mb:1024 large_segment_size_mb:-1
max_non_split_rounding_mb:19 max_non_split_rounding_mb:20 max_non_split_rounding_mb:0 max_non_split_rounding_mb:21
max_split_size_mb:64,max_split_size_mb:128 max_split_size_mb:64,large_segment_size_mb:65
large_segment_size_mb:65,max_split_size_mb:64 max_split_size_mb:33,large_segment_size_mb:32
large_segment_size_mb:30,max_non_split_rounding_mb:20 max_split_size_mb:15,large_segment_size_mb:12
"""
OTHERS = """
expandable_segments:True expandable_segments:False expandable_segments:true expandable_segments:1 expandable_segments:0
expandable_segments:TRUE expandable_segments: expandable_segments expandable_segments:yes expandable_segments:[True]
Expandable_segments:True expandable_segments:True:False expandable_segments=True
expandable_segments:True,expandable_segments:False expandable_segments:True;max_split_size_mb:64
garbage_collection_threshold:0 garbage_collection_threshold:0.0 garbage_collection_threshold:1
garbage_collection_threshold:0.999 garbage_collection_threshold:1.5 garbage_collection_threshold:-0.5
garbage_collection_threshold:abc garbage_collection_threshold:0.5x garbage_collection_threshold:nan
garbage_collection_threshold:1e-3 garbage_collection_threshold:.5 garbage_collection_threshold:
garbage_collection_threshold:+0.5 garbage_collection_threshold:0.6,garbage_collection_threshold:2
per_process_memory_fraction:0 per_process_memory_fraction:1 per_process_memory_fraction:1.5
per_process_memory_fraction:-0.1 per_process_memory_fraction:nan per_process_memory_fraction:inf
per_process_memory_fraction:0.5 per_process_memory_fraction:
backend:native backend:nonsense release_lock_on_cudamalloc:True release_lock_on_cudamalloc:maybe
throw_on_cudamalloc_oom:True throw_on_cudamalloc_oom:1 pinned_use_cuda_host_register:True
pinned_num_register_threads:4 pinned_num_register_threads:3 pinned_num_register_threads:128
pinned_num_register_threads:256 pinned_num_register_threads:0 pinned_use_background_threads:True
pinned_reserve_segment_size_mb:64 pinned_reserve_segment_size_mb:x graph_capture_record_stream_reuse:True
"""
ROUNDUP = """
0 1 3 4 -4 32 64 1024 abc 4.0 [] [4] [256] [256:1] [256:1,] [256:3] [255:2] [256:0] [256:00] [256:2,>:4] [>:4] [>:4,]
[>:4,256:2] [512:2,256:4] [256:2,512:4 256:2] [256:2;512:4] [65536:2] [1048576:2] [1:2] [0:2] [-1:2] [256:] [:2] [>:3]
[>:0] [256:2]x [256:2][512:4] [[256:2] [256:2x] [256x:2] [256:2,,512:4] [,256:2] [32:4,128:2,>:8] 4,max_split_size_mb:64
[256:2],max_split_size_mb:64 [256:2]max_split_size_mb:64
"""
SPACED = [
    "", " ", ",", ",,", ":", "x", "x:1", "[", "]", " max_split_size_mb:64", "max_split_size_mb: 64", "max_split_size_mb :64 ",
    "max_split_size_mb:64,", ",max_split_size_mb:64", "max_split_size_mb:64,,expandable_segments:True",
    "max_split_size_mb:64 expandable_segments:True", "max_split_size_mb:6 4", "expandable_segments:Tr ue",
    "\texpandable_segments:True\n", "roundup_power2_divisions:[ 256 : 2 , > : 4 ]", "roundup_power2_divisions:",
]  # fmt: skip
CONFS = [*WHOLE.split(), *OTHERS.split(), *(f"roundup_power2_divisions:{v}" for v in ROUNDUP.split()), *SPACED]


def in_force() -> tuple:
    import torch

    torch.empty(1, device="cuda")
    said = torch.cuda.memory._snapshot()["allocator_settings"]
    return (
        said["max_split_size"], said["garbage_collection_threshold"], said["expandable_segments"],
        tuple(said["roundup_power2_divisions"].values()), torch.cuda.get_per_process_memory_fraction(),
    )  # fmt: skip


def real(conf: str) -> tuple | None:
    try:
        return in_child(in_force, PYTORCH_CUDA_ALLOC_CONF=conf)
    except (ValueError, RuntimeError):
        return None


def modelled(conf: str) -> tuple | None:
    try:
        s = parse(conf)
    except InvalidRequest:
        return None
    split = -1 if s.max_split == UNLIMITED else s.max_split
    return split, s.gc_threshold, s.expandable, s.roundup_divisions, s.memory_fraction


@pytest.mark.parametrize("conf", CONFS, ids=repr)
def test_what_pytorch_makes_of(conf):
    assert modelled(conf) == real(conf)


def later(*confs: str) -> list[tuple]:
    import torch

    seen = [in_force()]
    for conf in confs:
        torch._C._accelerator_setAllocatorSettings(conf)
        seen.append(in_force())
    return seen


def test_settings_at_run_time():
    """What is not named goes back to its default, expandable_segments stays, and the fraction is read only once."""
    first = (
        "max_split_size_mb:64,garbage_collection_threshold:0.6,expandable_segments:True,per_process_memory_fraction:0.5"
    )
    confs = ["", "roundup_power2_divisions:8", "expandable_segments:False", "per_process_memory_fraction:0.7"]
    allocator = CachingAllocator(1 << 30, first)
    ours = [modelled(first)]
    for conf in confs:
        allocator.set_conf(conf)
        s = allocator._settings
        ours.append((-1, s.gc_threshold, s.expandable, s.roundup_divisions, allocator._limit / allocator.capacity))
    assert ours == in_child(later, *confs, PYTORCH_CUDA_ALLOC_CONF=first)
