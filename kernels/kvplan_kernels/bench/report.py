"""What every benchmark file says of its run, and reasons that outlive a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton


def stamp(schema: str, program: str, method: str) -> dict[str, Any]:
    """Command, device, versions and method."""
    return {
        "schema": schema,
        "command": " ".join([f"python -m kvplan_kernels.bench.{program}", *command_words(sys.argv[1:])]),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "method": method,
    }


def command_words(argv: Sequence[str]) -> list[str]:
    """The options as a shell reads them; the file by its name only, since its folder says nothing of the result."""
    named = [Path(word).name if i and argv[i - 1] == "--json" else word for i, word in enumerate(argv)]
    return [f"'{word}'" if " " in word else word for word in named]


def with_reasons(rows: list[dict[str, Any]], old: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasons that were written by hand into an earlier file stay with the rows that still miss."""
    known = {(r["format"], r["case"]): r["reason"] for r in old if r.get("reason")}
    return [r | {"reason": known.get((r["format"], r["case"])) if r["misses"] else None} for r in rows]
