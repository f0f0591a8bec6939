"""Shape: what each layer of a model keeps of a token, read from a config of transformers, a dict or a config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvviz.counts import counted as whole_number
from kvviz.errors import InvalidRequest
from kvviz.sizing.known import KNOWN
from kvviz.sizing.precision import KVScheme, kv_scheme

FULL, SLIDING = ("full_attention", "attention", "hybrid"), ("sliding_attention", "chunked_attention", "hybrid_sliding")
# a state of one size instead of keys and values, or neither
NOTHING = ("linear_attention", "mamba", "conv", "recurrent", "moe", "mlp", "dummy")
MLA = ("latent", "expanded")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST, MOST_LAYERS = 1 << 60, 1 << 16  # beyond, a number is a mistake, and lists of so many layers would fill the memory


@dataclass(frozen=True)
class KVLayer:
    """What one layer stores of each token: `heads` times key_dim and value_dim numbers. window: tokens it keeps, None: all.

    latent: the compressed latent of multi-head latent attention (key_dim) and the one key with positions that all heads
    share (value_dim): stored once, and not divisible by heads.
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: bool = False

    def token_bits(self, scheme: KVScheme, page_size: int | None = None) -> Fraction:
        """Bits of one token, scales included. page_size: see KVScheme.key_bits."""
        return self.heads * (scheme.key_bits(self.key_dim, page_size) + scheme.value_bits(self.value_dim))

    @property
    def attention(self) -> str:
        """What it is called: full, sliding, latent."""
        return "latent" if self.latent else "full" if self.window is None else "sliding"


def kv_bytes_per_token(config_or_model: Any, dtype: Any, mla: str = "latent") -> int:
    """Bytes of keys and values of one token in all layers; windows are not applied.

    config_or_model: a transformers model or config (of multimodal ones the text part), a dict with the values of a
    config.json, the path of such a file or its folder, or a name in KNOWN.
    dtype: torch.float32, float16, bfloat16, a float8 type, or one of "fp32", "fp16", "bf16", "fp8", "int8", "int4".
    Quantized ones count their scales:
    - int8: an fp16 scale for each token and head, for keys and values each;
    - int4: keys by channel in groups of 32 tokens, values by token in groups of 32 channels, each group with an fp16
      scale and zero point; what a group of tokens shares is spread over it, and the sum rounded up to whole bytes;
    - fp8: nothing per token (one scale for a layer).

    Not counted, since nothing of a token is kept there: layers without attention (mamba, linear attention,
    convolutions: their state has one size for any number of tokens) and layers that use the keys and values of an
    earlier one (Gemma 3n and 4).
    A head is counted once; transformers' own cache repeats those of Falcon with new_decoder_architecture.
    mla: what a model with multi-head latent attention (DeepSeek V2, V3) caches: "latent" (kv_lora_rank +
    qk_rope_head_dim numbers a layer, DeepSeek-V2, arXiv 2405.04434, section 2.1; transformers does so in 5.24) or
    "expanded" (the keys and values of every head, as earlier releases of transformers).

    Raises InvalidRequest for what is no decoder with attention of a known kind.
    """
    scheme = kv_scheme(dtype)
    return math.ceil(sum((layer.token_bits(scheme) for layer in kv_layers(config_or_model, mla)), Fraction()) / 8)


def kv_layers(config_or_model: Any, mla: str = "latent") -> list[KVLayer]:
    """The layers that keep something of each token, in order. Raises InvalidRequest."""
    if mla not in MLA:
        raise InvalidRequest(f"mla must be 'latent' or 'expanded', got {mla!r:.40}")
    config = read_config(config_or_model)
    layers = []
    for number, (kind, own) in enumerate(layer_kinds(config)):
        if kind in NOTHING or number in (
            value_of(config, "cross_attention_layers") or ()
        ):  # these keep an image, not tokens
            continue
        if kind not in FULL + SLIDING:
            raise InvalidRequest(f"layer {number} is of type {kind}: what it keeps of a token is not known here")
        layers.append(_layer(own, _window(own, kind, number) if kind in SLIDING else None, mla))
    return layers


def read_config(source: Any) -> Any:
    """The config of the language part. Raises InvalidRequest, in one line, for what is none."""
    config = whole_config(source)
    if callable(getattr(config, "get_text_config", None)):
        config = config.get_text_config(decoder=True)
    if value_of(config, "is_decoder") is False and _fills_blanks(value_of(config, "model_type")):
        raise InvalidRequest(f"a {config.model_type} model with is_decoder=False is an encoder: it has no cache")
    return config


def whole_config(source: Any) -> Any:
    """The config, with the vision part of a multimodal model; values as they are where transformers knows no such model."""
    config = source if callable(getattr(source, "get_text_config", None)) else getattr(source, "config", source)
    if isinstance(config, str | Path):
        config = KNOWN[config] if config in KNOWN else _read_file(Path(config))
    if isinstance(config, Mapping):
        config = _from_dict(dict(config))
    elif not callable(getattr(config, "get_text_config", None)) and not isinstance(config, SimpleNamespace):
        raise InvalidRequest(
            f"a transformers model or config, a dict or the path of a config.json is needed, got {type(source).__name__}"
        )
    if value_of(config, "is_encoder_decoder"):
        raise InvalidRequest(
            "encoder-decoder models have a second cache, which is not counted: use a decoder-only model"
        )
    return config


def _fills_blanks(kind: Any) -> bool:
    """BERT's kind. Some decoders, GPT-NeoX for one, say is_decoder=False, too."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _read_file(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(
            f"{str(path)!r} is neither a config.json or its folder ({error.strerror or error}) nor one of {', '.join(KNOWN)}"
        ) from error
    except ValueError as error:
        raise InvalidRequest(f"{file} is no JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise InvalidRequest(f"{file} is no config.json: it holds a {type(values).__name__}")
    return values


def _from_dict(values: dict[str, Any]) -> Any:
    """A config of transformers where it knows the model type (it fills in what is not said), else the values as they are."""
    from transformers import CONFIG_MAPPING

    kind = values.get("model_type")
    for name in LAYERS:
        if values.get(name) is not None:
            counted(name, values[name], MOST_LAYERS)
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        try:
            return CONFIG_MAPPING[kind].from_dict(values)
        except Exception as error:  # validators of many kinds
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"no config of a {kind} model: {reason}") from error
    if isinstance(values.get("text_config"), Mapping):
        return _from_dict(dict(values["text_config"]))
    return SimpleNamespace(**{str(name): value for name, value in values.items()})


def layer_kinds(config: Any) -> list[tuple[str, Any]]:
    """Type of each layer, and the config that holds for it."""
    layers = count_of(config, *LAYERS, most=MOST_LAYERS)
    if not isinstance(config, SimpleNamespace):
        try:
            from transformers.cache_utils import get_layer_types_and_kwargs

            return list(zip(get_layer_types_and_kwargs(config)[0], config.per_layer_config))
        except ImportError:  # before 5.17
            pass
    window = value_of(config, "sliding_window") if value_of(config, "use_sliding_window") is not False else None
    kinds = value_of(config, "layer_types", "layers_block_type") or [SLIDING[0] if window else FULL[0]] * layers
    if not isinstance(kinds, list | tuple) or len(kinds) != layers:
        got = f"{len(kinds)} of them" if isinstance(kinds, list | tuple) else f"a {type(kinds).__name__}"
        raise InvalidRequest(f"layer_types must be a list of {layers} types, one for each layer, got {got}")
    shared = count_or_none(config, "num_kv_shared_layers") or 0
    kinds = [*kinds[: layers - shared], *["dummy"] * shared]
    return [(kind, _of_global(config, kind)) for kind in kinds]


def _of_global(config: Any, kind: str) -> Any:
    """Gemma 4 has heads of another size, and another number of them, in its layers with full attention."""
    dim = value_of(config, "global_head_dim")
    if kind not in FULL or not dim:
        return config
    heads = value_of(config, "num_global_key_value_heads") if value_of(config, "attention_k_eq_v") else None
    values = {"head_dim": dim, "num_key_value_heads": heads or value_of(config, "num_key_value_heads")}
    return SimpleNamespace(**(vars(config) | values))


def _layer(config: Any, window: int | None, mla: str) -> KVLayer:
    heads = count_of(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    if rank := count_or_none(config, "kv_lora_rank"):
        rope = count_of(config, "qk_rope_head_dim")
        if mla == "latent":
            return KVLayer(1, rank, rope, window, latent=True)
        return KVLayer(heads, count_of(config, "qk_nope_head_dim") + rope, count_of(config, "v_head_dim"), window)
    if embedding := count_or_none(config, "n_embd"):  # GPT-2's family reads no head_dim and no number of KV heads
        dim = counted("n_embd // n_head", embedding // heads)
        return KVLayer(1 if value_of(config, "multi_query") else heads, dim, dim, window)
    named = count_or_none(config, "head_dim", "attention_head_dim", "d_kv")
    dim = named or counted("hidden_size // num_attention_heads", _hidden(config) // heads)
    kv_heads = _kv_heads(config, heads)
    if (
        window and value_of(config, "model_type") == "mimo_v2_flash"
    ):  # its sliding layers have twice as many; no value says so
        kv_heads *= 2
    return KVLayer(kv_heads, dim, count_or_none(config, "v_head_dim") or dim, window)


def _kv_heads(config: Any, heads: int) -> int:
    """Grouped-query attention has fewer than heads, multi-query attention one."""
    # Falcon names a number of KV heads that counts only if it is of the newer kind
    if value_of(config, "multi_query") and not value_of(config, "new_decoder_architecture"):
        return 1
    inner = value_of(config, "attn_config")
    named = value_of(
        config, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_query_groups"
    )
    named = named or (inner.get("kv_n_heads") if isinstance(inner, Mapping) else value_of(inner, "kv_n_heads")) or heads
    if heads % counted("num_key_value_heads", named):
        raise InvalidRequest(f"{named} key-value heads do not go into {heads} attention heads")
    return int(named)


def _hidden(config: Any) -> int:
    return count_of(config, "hidden_size", "d_model")


def _window(config: Any, kind: str, layer: int) -> int:
    names = ("attention_chunk_size",) if kind == "chunked_attention" else ("sliding_window", "attention_window_size")
    window = value_of(config, *names)
    if window is None:
        raise InvalidRequest(f"layer {layer} is of type {kind}, and {names[0]} is None")
    return counted(names[0], window)


def value_of(config: Any, *names: str) -> Any:
    """The first of these that the config has a value for."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def count_of(config: Any, *names: str, most: int = MOST) -> int:
    value = value_of(config, *names)
    if value is None:
        kind = value_of(config, "model_type")
        raise InvalidRequest(f"the config{f' of a {kind} model' if kind else ''} has no {names[0]}")
    return counted(names[0], value, most)


def count_or_none(config: Any, *names: str) -> int | None:
    """None where the config has no such value, or 0 for one."""
    return count_of(config, *names) if value_of(config, *names) else None


def counted(name: str, value: Any, most: int = MOST, least: int = 1) -> int:
    """A whole number from `least` to `most`. Raises InvalidRequest."""
    return whole_number(name, value, least, most)
