"""The stub CUDA runtime itself: what its variables promise, and that models run on it."""

import pathlib

import pytest

from tests.cuda_stub.oracle import ChildDied, in_child
from tests.cuda_stub.workloads import MIB


def addresses(*sizes: int) -> list[int]:
    import torch

    tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    return [t.data_ptr() for t in tensors]


@pytest.mark.parametrize(
    ("policy", "offsets"),
    [("firstfit", [0, 100]), ("bump", [0, 100]), ("down", [(1 << 20) - 102, (1 << 20) - 202])],
)
def test_placement(policy, offsets):
    got = in_child(addresses, 100 * MIB, 100 * MIB, STUBCUDA_POLICY=policy)
    assert [(a - 0x600000000000) // MIB for a in got] == offsets


def memory_info() -> tuple:
    import torch

    torch.empty(1, device="cuda")
    return torch.cuda.device_count(), torch.cuda.mem_get_info(), torch.cuda.get_device_capability()


def test_capacity_context_and_capability():
    got = in_child(
        memory_info, STUBCUDA_DEVICES=3, STUBCUDA_TOTAL_MIB=1000, STUBCUDA_CONTEXT_MIB=300, STUBCUDA_CC="9.0"
    )
    assert got == (3, (698 * MIB, 1000 * MIB), (9, 0))


def each_device() -> list[int]:
    import torch

    tensors = [torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{d}") for d in range(4)]
    assert [t.device.index for t in tensors] == [0, 1, 2, 3]
    return [torch.cuda.memory_allocated(d) for d in range(4)]


def test_devices_have_memory_of_their_own():
    assert in_child(each_device, STUBCUDA_DEVICES=4) == [MIB] * 4


def round_trip() -> list[float]:
    import torch

    return torch.tensor([1.0, 2.0, 3.0]).cuda().cpu().tolist()


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_copies_move_bytes_only_where_there_are_bytes(conf):
    assert in_child(round_trip, PYTORCH_CUDA_ALLOC_CONF=conf) == [0.0, 0.0, 0.0]
    assert in_child(round_trip, PYTORCH_CUDA_ALLOC_CONF=conf, STUBCUDA_BACKED=1) == [1.0, 2.0, 3.0]


def event_passed(synchronize: bool) -> bool:
    import torch

    event = torch.cuda.Event()
    event.record()
    if synchronize:
        torch.cuda.synchronize()
    return event.query()


def test_manual_events_pass_at_a_synchronize():
    assert in_child(event_passed, False)
    assert not in_child(event_passed, False, STUBCUDA_EVENTS="manual")
    assert in_child(event_passed, True, STUBCUDA_EVENTS="manual")


def exhaust() -> str:
    import torch

    try:
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)
    return ""


def test_running_out_is_pytorchs_own_error():
    said = in_child(exhaust, STUBCUDA_TOTAL_MIB=1536)
    assert "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.50 GiB of which 1.50 GiB is free" in said


def layers() -> int:
    """One step of training with what a transformer is made of; no kernel runs, the memory is that of a real step."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(layer.parameters())
    out = layer(torch.zeros(2, 128, 256, device="cuda", dtype=torch.bfloat16))
    torch.nn.functional.scaled_dot_product_attention(*(torch.zeros(1, 4, 64, 64, device="cuda") for _ in range(3)))
    out.float().sum().backward()
    optimizer.step()
    return torch.cuda.max_memory_allocated()


def test_layers_and_a_training_step_run():
    assert in_child(layers) > 10 * MIB


def test_the_log_names_missing_entry_points(tmp_path: pathlib.Path):
    log = tmp_path / "log"
    in_child(missing, STUBCUDA_LOG=log)
    assert "entry point not implemented: cuNoSuchThing" in log.read_text()


def missing() -> None:
    from tests.cuda_stub.oracle import stub_library

    stub_library().stub_entry_point(b"cuNoSuchThing")


def die() -> None:
    import os

    os._exit(7)


def test_a_child_that_dies_is_told_from_one_that_answers():
    with pytest.raises(ChildDied, match="7"):
        in_child(die)
