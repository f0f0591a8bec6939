"""Continue a prompt with a model in shards, and leave the page log of all ranks in a file: for lessons and first tries.

    torchrun --standalone --nproc-per-node 2 -m kvviz.cache.run_sharded pages.npz --model smollm2 --compare

In the notebook then: kvviz.page_map(sharded.load_log("pages.npz")), with sharded from kvviz.cache.
"""

from __future__ import annotations

import argparse
import sys

import torch

from kvviz.cache import ranks, sharded
from kvviz.cache.generate import paged_cache
from kvviz.errors import KvvizError
from kvviz.models import decode, load_model

PROMPT = "The memory of a language model is"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("run_sharded", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", help="file for the page log of all ranks (.npz)")
    parser.add_argument("--model", default="tiny", help="smollm2, tiny, a hub name or a folder")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--steps", type=int, default=24, help="tokens to add")
    parser.add_argument("--page-size", type=int, default=16, help="tokens a page")
    parser.add_argument("--tokens", type=int, help="capacity of the cache, of a sequence")
    parser.add_argument("--window", type=int, help="tokens that a query sees")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that ranks wait for one another")
    parser.add_argument("--compare", action="store_true", help="run the whole model too, on rank 0 before it is cut")
    options = parser.parse_args(arguments)
    try:
        with sharded.join(options.timeout) as here:
            _run(here, options)
    except KvvizError as error:  # one line from each rank instead of a traceback from each
        print(f"kvviz: {error}", file=sys.stderr)
        return 1
    return 0


def _run(here: sharded.Ranks, options: argparse.Namespace) -> None:
    model, tokenizer = load_model(options.model, device=here.device)
    ids = tokenizer(options.prompt, return_tensors="pt").input_ids.to(here.device)
    whole = None
    settings = {"page_size": options.page_size, "window": options.window}
    settings["tokens"] = options.tokens or ids.shape[1] + options.steps
    if options.compare and here.rank == 0:
        with torch.inference_mode():
            whole = decode(model, ids, options.steps, paged_cache(model, **settings)), model(ids).logits
    part = sharded.shard(model, here)
    cache = part.paged_cache(**settings)
    out = decode(model, ids, options.steps, cache)
    cache.check()
    report, log = sharded.bytes_of_ranks(cache), sharded.log_of_ranks(cache)
    with torch.inference_mode():
        logits = model(ids).logits
    for line in here.objects(repr(part)):
        _say(here, line)
    _say(here, f"{report}\n{report.held:,} B held together")
    _say(here, tokenizer.decode(out[0], skip_special_tokens=True))
    if whole is not None:
        alike = "the same tokens as" if torch.equal(whole[0], out) else "OTHER TOKENS than"
        apart = (whole[1] - logits).abs().max().item()
        most = logits.abs().max().item()
        _say(here, f"{alike} the whole model; logits of the prompt at most {apart:.1e} apart, of {most:.1f}")
    if here.rank == 0:
        sharded.save_log(log, options.out)


def _say(here: sharded.Ranks, text: str) -> None:
    if here.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    ranks.leave(main())
