"""Many sequences on one model: continuous batching, prefix sharing, preemption, on kvviz's own pages.

    engine = kvviz.serve.Engine(model, pages=64)
    engine.add(prompt_ids, max_new_tokens=32)
    outputs = engine.run()
    kvviz.page_map(engine.log)

    request.py    what was asked for, and its samples        batch.py      many sequences in one call of the model
    scheduler.py  who computes how many tokens in a step     engine.py     a step: schedule, call the model, take tokens
    metrics.py    times, pages and waste, step by step       workload.py   lengths and prompts;  waste.py  what they waste
    transformers.py   generate_batch of transformers, its blocks recorded for the same picture

For reading in an evening, not for production: one process, one device, greedy decoding, full attention.
"""

from kvviz.serve.engine import Engine
from kvviz.serve.metrics import Metrics, Step
from kvviz.serve.request import Request, Sample
from kvviz.serve.transformers import BatchingRecording, record_batching
from kvviz.serve.workload import Job, read_trace, shared_prefixes, workload

__all__ = [
    "BatchingRecording",
    "Engine",
    "Job",
    "Metrics",
    "Request",
    "Sample",
    "Step",
    "read_trace",
    "record_batching",
    "shared_prefixes",
    "workload",
]
