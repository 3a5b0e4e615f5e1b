"""What can go wrong on a device, in words, and whether the process can go on afterwards."""

from __future__ import annotations

import gc

import torch

from kvplan.errors import KvplanError

LOST = "the CUDA context was lost before (an illegal access ends it): run again with --resume"


def describe(error: Exception) -> str:
    """One line for the report."""
    if isinstance(error, KvplanError):
        return f"{error.message} ({error.hint})"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"out of GPU memory: {_first_line(error)} (use a smaller --batch or --context)"
    return f"{type(error).__name__}: {_first_line(error)}"


def usable(device: str) -> bool:
    """Free what a failed piece of work held; False if the device can do no more work in this process."""
    # An exception's frames may hold tensors in a cycle.
    gc.collect()
    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]
