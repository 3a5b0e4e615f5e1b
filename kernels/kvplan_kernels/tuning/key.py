"""What the fastest launch shape depends on, as JSON values by name: a result is kept under it, and for it only."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cache as once
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

import kvplan.formats
import kvplan_kernels
from kvplan_kernels.attention.config import count_sms
from kvplan_kernels.attention.decode import count_heads
from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.cache import Cache
from kvplan_kernels.dialect import capability_of

Key = dict[str, Any]


def launch_key(q: Tensor, cache: Cache, mode: Mode) -> Key:
    """What a search depends on: the GPU, what is compiled, the heads that share the programs, compiler and sources."""
    layout = cache.layout
    return {
        **gpu(q.device),
        **{role: layout.tensor(role).spelling for role in ("k", "v")},
        "dims": [layout.tensor(role).dim for role in ("k", "v")],
        "dtype": str(q.dtype).removeprefix("torch."),
        "kv_heads": layout.heads,
        "heads_of_all_requests": count_heads(cache, mode),
        "mode": asdict(mode),
        "page_size": cache.page_size,
        "triton": triton.__version__,
        "kernels": sources_hash(),
    }


def gpu(device: torch.device) -> Key:
    """Name, compute capability (10 * major + minor) and multiprocessors."""
    return {
        "gpu": torch.cuda.get_device_name(device),
        "capability": capability_of(device),
        "sms": count_sms(device),
    }


@once
def sources_hash() -> str:
    """Of all Python files of the kernels and of the layouts that they are compiled for."""
    return hash_of(*(Path(str(module.__file__)).parent for module in (kvplan_kernels, kvplan.formats)))


def hash_of(*folders: Path) -> str:
    """Of the names and contents of all Python files below."""
    found = hashlib.sha256()
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
