"""Notebook 11: read a diagnosis, mend two programs so that the next one finds nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvviz.exercises import Exercise, Verdict
from kvviz.memory.diagnose import diagnose
from kvviz.memory.record import record

WINDOW, LAYERS, STEPS = 64, 4, 24


def exercises() -> list[Exercise]:
    """The exercises of notebook 11."""
    return [
        Exercise(
            "11.1", "Bytes of a leak", 1, 4,
            "A server keeps the cache of every conversation of a model with 32 layers, 8 KV heads of 128 and bf16. Each has "
            "2,000 tokens. A diagnosis says: 7.81 GiB in 2,048 blocks of “kv cache” are kept. How many conversations are that?",
            _conversations,
            "2 × 32 layers are 64 blocks a conversation, and 131,072 bytes a token.",
            ["Keys and values of each layer are a block each.", "2,048 blocks, 2 × 32 of them for each conversation."],
        ),
        Exercise(
            "11.2", "A window that lets go", 2, 6,
            f"Write slide(kept, rows): it appends `rows` to `kept` (both [1, heads, tokens, head_dim]) and returns the last "
            f"{WINDOW} tokens, so that a diagnosis of {STEPS} steps finds nothing. Call check(slide).",
            _window,
            "A clone has a storage of its own, as large as the window; the long one goes.",
            ["A slice keeps its whole storage alive.", "tensor.clone()"],
        ),
        Exercise(
            "11.3", "Scores without a graph", 2, 6,
            "A program scores texts: scores.append(loss(weight, text)), with a weight that requires a gradient, and keeps "
            "the scores. Write score(loss, weight, texts) that returns the list of scores as tensors, so that nothing else "
            "stays behind. Call check(score).",
            _scores,
            "Without a graph nothing of the forward pass has to be kept.",
            ["Each score has a grad_fn, and through it all that its backward pass would read.",
             "torch.inference_mode(), torch.no_grad() or .detach()"],
        ),
    ]  # fmt: skip


def _conversations(answer: float) -> Verdict:
    if answer == 32:
        return None
    return "Too many." if answer > 32 else "Too few."


def _window(slide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Verdict:
    rows = [torch.randn(1, 2, 40 + 16 * (k % 3), 32) for k in range(STEPS)]
    kept = [torch.zeros(1, 2, WINDOW, 32) for _ in range(LAYERS)]
    wanted = torch.cat([kept[0], *rows], dim=2)[:, :, -WINDOW:].clone()
    with record("cpu", stacks=None) as run:
        for new in rows:
            kept = [slide(old, new) for old in kept]
    if not all(isinstance(tensor, torch.Tensor) and torch.equal(tensor, wanted) for tensor in kept):
        return f"It should return the last {WINDOW} tokens of both together."
    found = diagnose(run.trace).findings
    return f"The diagnosis still says: {found[0].what}. {found[0].text}" if found else None


def _scores(score: Callable[[Callable, torch.Tensor, list[torch.Tensor]], list[torch.Tensor]]) -> Verdict:
    weight = torch.randn(256, 256, requires_grad=True)
    texts = [torch.randn(64, 256) for _ in range(STEPS)]

    def loss(weight: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return (text @ weight).tanh().exp().mean()

    with torch.no_grad():
        wanted = torch.stack([loss(weight, text) for text in texts])
    with record("cpu", stacks=None) as run:
        scores = score(loss, weight, texts)
    if len(scores) != STEPS or not torch.allclose(torch.stack([s.detach() for s in scores]), wanted):
        return "It should return one score a text, each as loss() gives it."
    found = diagnose(run.trace).findings
    return f"The diagnosis still says: {found[0].what}. {found[0].text}" if found else None
