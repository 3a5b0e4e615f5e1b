"""What a log measured, as the file that estimates read with --calibration."""

from __future__ import annotations

import json
from typing import Any

from kvplan.errors import UsageError
from kvplan.plan.calibration import SCHEMA
from kvplan.reconcile.result import Reconciliation

OPTIONS = (
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "enforce_eager", "tensor_parallel_size", "tp_size",
    "chunked_prefill_size", "max_running_requests", "cuda_graph_max_bs", "n_ubatch", "gpu_memory_utilization",
    "mem_fraction_static", "kv_cache_dtype", "max_batch_size", "max_num_tokens",
)  # fmt: skip
"""Settings of a log that activations and graphs depend on."""


def calibration(found: Reconciliation) -> dict[str, Any]:
    """The fields of a calibration file.

    Raises:
        UsageError: the log does not show the memory beside weights and cache.
    """
    if found.beside is None:
        raise UsageError(f"nothing to save: {found.why_not}", "give --gpu, or a log with that line")
    if found.beside.high_bytes < 0:
        raise UsageError(
            f"nothing to save: what is left beside weights and cache is negative ({found.beside.formula})",
            "check --gpu and the share of memory in the log",
        )
    return {
        "schema": SCHEMA,
        "engine": found.engine,
        "version": found.start.version or found.version,
        "model": found.model,
        "gpu_memory_bytes": found.beside.memory_bytes,
        "options": {name: value for name, value in found.start.options if name in OPTIONS},
        "residual_low_bytes": max(found.beside.low_bytes, 0),
        "residual_high_bytes": found.beside.high_bytes,
        "formula": found.beside.formula,
    }


def calibration_text(found: Reconciliation) -> str:
    """The file's text."""
    return json.dumps(calibration(found), indent=1) + "\n"
