"""Looks at a CUDA run, over PyTorch's own allocator: each is a state of the trace that the recording ends with."""

from tests.cuda_stub.oracle import in_child

MIB = 1 << 20


def looked_at():
    """What each look said, and what the trace says of that moment: blocks with their owners, and reserved bytes."""
    import torch

    import kvviz

    kept = [torch.empty(MIB * (1 + k % 5), device="cuda", dtype=torch.uint8) for k in range(20)]
    looks, stream = {}, torch.cuda.Stream()
    with kvviz.record(device="cuda") as run:
        cache = [None]
        run.own(kept[:3], "mine")
        for step in range(30):
            cache[0] = torch.empty(step + 1, 90_000, device="cuda")
            run.own(cache, "cache")
            kept[3 + step % 17] = torch.empty(MIB * (1 + step % 7), device="cuda", dtype=torch.uint8)
            if step == 17:
                with torch.cuda.stream(stream):
                    kept.append(torch.empty(3 * MIB, device="cuda", dtype=torch.uint8))
            run.mark(f"step {step}")
            if step % 5 == 4:
                looks[f"step {step}"] = run._recorder.look()
    trace, told = run.trace, []
    for mark in trace.marks:
        if mark.name in looks:
            look, state = looks[mark.name], trace.at(mark.event)
            active = state.blocks[state.blocks["state"] != 0]
            columns = (active[name].tolist() for name in ("address", "size", "requested", "owner"))
            told.append(
                (
                    sorted((b.address, b.size, b.requested, b.owner) for b in look.blocks),
                    list(zip(*columns, strict=True)),
                    sum(s.size for s in look.segments),
                    state.reserved,
                    len({b.stream for b in look.blocks}),
                )
            )
    return told


def test_each_look_is_a_state_of_the_trace():
    told = in_child(looked_at)
    assert len(told) == 6
    for seen, true, reserved, true_reserved, _ in told:
        assert seen == true
        assert reserved == true_reserved
    assert {owner for *_, owner in told[-1][0]} == {0, 3, 4}  # nobody's, mine, the cache's
    assert [streams for *_, streams in told] == [1, 1, 1, 2, 2, 2]
