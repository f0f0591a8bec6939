"""Snapshots as every torch writes them, made from the allocator model: what a reader must turn back into its trace."""

from __future__ import annotations

from typing import Any

from kvviz import CachingAllocator
from kvviz.memory.state import State
from kvviz.memory.trace import Action

GENERATIONS = ("2.0", "2.1", "2.4", "2.5", "2.14")
STATES = {State.INACTIVE: "inactive", State.ALLOCATED: "active_allocated"}
STREAM = 0x7F0000001000  # the handle of stream 1; that of stream 2 is twice as large
NAMES = [action.name.lower() for action in Action]
LIBRARY = {"name": "forward", "filename": "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 125}
CPP = {"name": "c10::cuda::malloc", "filename": "??", "line": 0}
USER = {"name": "decode", "filename": "project/run.py", "line": 12}


def snapshot_of(allocator: CachingAllocator, generation: str = "2.14", cut: int = 0, device: int = 0) -> dict[str, Any]:
    """The allocator's present state and its history from event `cut` on."""
    since = GENERATIONS.index(generation)
    segments = [_segment(s, since, device) for s in allocator.segments]
    e = allocator.trace.events
    rows = zip(
        e.action.tolist(), e.address.tolist(), e.size.tolist(), e.requested.tolist(), e.stream.tolist(), strict=True
    )
    events = [_event(k, since, *row) for k, row in enumerate(rows) if k >= cut]
    snapshot: dict[str, Any] = {"segments": segments, "device_traces": [[] for _ in range(device)] + [events]}
    if since >= 2:
        snapshot["allocator_settings"] = _settings(allocator)
    if since >= 3:
        snapshot["external_annotations"] = []
    if since >= 4:
        snapshot |= {"host_segments": [], "host_traces": []}
    return snapshot


def _event(k: int, since: int, action: int, address: int, size: int, requested: int, stream: int) -> dict[str, Any]:
    about_segment = Action.SEGMENT_ALLOC <= action <= Action.SEGMENT_UNMAP
    event = {
        "action": NAMES[action], "addr": address, "size": size if about_segment else requested,
        "stream": STREAM * stream,
    }  # fmt: skip
    if action == Action.OOM:
        del event["addr"]
        event["device_free"] = 1 << 20
    if since >= 2:
        event["time_us"] = 1_700_000_000_000_000 + 3 * k
        event["frames"] = [CPP, LIBRARY, USER] if k % 3 else []
    if since >= 3:
        event |= {"compile_context": "N/A", "user_metadata": ""}
    if since >= 4:
        event["pool_id"] = (0, 0)
    return event


def _segment(info: Any, since: int, device: int) -> dict[str, Any]:
    blocks = []
    for block in info.blocks:
        waits = "active_awaiting_free" if since else "active_pending_free"
        told: dict[str, Any] = {
            "size": block.size, "state": STATES.get(block.state, waits),
            "requested_size": block.requested or 200_000_000,  # cached: what the last user of the place had asked for
        }  # fmt: skip
        if since:
            told |= {"address": block.address, "frames": []}
        elif block.state != State.INACTIVE:
            told["history"] = [{"addr": block.address, "real_size": block.requested, "frames": [CPP, USER]}]
        blocks.append(told)

    def total(name: str, *states: State) -> int:
        return sum(getattr(b, name) for b in info.blocks if b.state in states)

    segment = {
        "device": device, "address": info.address, "total_size": info.size, "stream": STREAM * info.stream,
        "allocated_size": total("size", State.ALLOCATED), "segment_type": "small" if info.small else "large",
        "active_size": total("size", State.ALLOCATED, State.AWAITING_FREE),
        "requested_size": total("requested", State.ALLOCATED, State.AWAITING_FREE), "blocks": blocks,
    }  # fmt: skip
    if since:
        segment |= {"segment_pool_id": (0, 0), "is_expandable": info.expandable, "frames": []}
    return segment


def _settings(allocator: CachingAllocator) -> dict[str, Any]:
    now = allocator._settings
    split = now.max_split if now.max_split < 1 << 62 else -1
    return {
        "PYTORCH_CUDA_ALLOC_CONF": allocator.conf, "max_split_size": split, "expandable_segments": now.expandable,
        "garbage_collection_threshold": now.gc_threshold,
        "roundup_power2_divisions": {str(1 << k): value for k, value in enumerate(now.roundup_divisions)},
    }  # fmt: skip
