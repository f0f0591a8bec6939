"""sizing: how many bytes a token takes, what fits into a memory, and what to change so that more fits; nothing is run.

kvviz.kv_bytes_per_token(config, "fp16")    # shape.py: from the config of a model, layer by layer
kvviz.plan(config, "24GiB", 32_768)         # plan.py, terms.py: weights, cache, workspace, each with its equation
kvviz.plan(...).options()                   # options.py: the smallest changes that make it fit
sizing.KV_SCHEMES["int4"]                   # precision.py: bits and scales of quantized caches and weights
sizing.KNOWN["llama-2-13b"]                 # known.py: shapes of well-known models
"""

from kvviz.sizing.known import KNOWN
from kvviz.sizing.options import Option, Options
from kvviz.sizing.plan import Plan, plan
from kvviz.sizing.precision import KV_SCHEMES, WEIGHT_SCHEMES, KVScheme, WeightScheme
from kvviz.sizing.shape import KVLayer, kv_bytes_per_token, kv_layers
from kvviz.sizing.terms import Overhead, Term

__all__ = [
    "KNOWN",
    "KV_SCHEMES",
    "WEIGHT_SCHEMES",
    "KVLayer",
    "KVScheme",
    "Option",
    "Options",
    "Overhead",
    "Plan",
    "Term",
    "WeightScheme",
    "kv_bytes_per_token",
    "kv_layers",
    "plan",
]
