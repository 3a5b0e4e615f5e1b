"""What llama.cpp refuses, and what kvplan has no rule for.

Source: llama.cpp b11434, src/llama-context.cpp:3819-3875.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.engines.llamacpp.builds import build_of
from kvplan.engines.llamacpp.families import (
    ABORTS_UNLESS_EVEN,
    NO_FLASH_ATTENTION,
    ROLLBACK,
    UNWINDOWED,
    WINDOWED,
    family,
)
from kvplan.engines.llamacpp.formats import PLAIN_TYPES
from kvplan.engines.llamacpp.server import Server, context_of
from kvplan.engines.llamacpp.stores import without_flash_attention
from kvplan.engines.llamacpp.tensors import block, cuda_bytes
from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError, UsageError

SLOTS = "One slot per sequence, as with -np; llama-server without -np takes n_parallel=4 and kv_unified=on."


def check(case: Case, server: Server) -> None:
    """Refuse what llama.cpp refuses.

    Raises:
        UsageError: with the option that helps.
        UnsupportedError: tensor split mode, and caches that kvplan has no rule for.
    """
    if not build_of(case).special and any(g.role not in ("kv", "latent") or g.law.stride > 1 for g in case.groups):
        raise UnsupportedError(
            f"kvplan covers only K, V and latents in llama.cpp {case.version}", "plan with a newer --engine-version"
        )
    _check_gpus(case)
    _check_types(case)
    _check_blocks(case)
    _check_server(case, server)
    if any(dtype not in (None, "fp32") for dtype in (case.formats.recurrent, case.formats.conv)):
        raise UsageError("llama.cpp keeps states in fp32", "drop --state-dtype and --conv-dtype")


def _check_gpus(case: Case) -> None:
    sharding, off = case.sharding, without_flash_attention(case)
    if sharding.dcp > 1 or sharding.pcp > 1 or sharding.dp_attention:
        raise UsageError("llama.cpp has no context parallelism and no data-parallel attention", "use --pp for its GPUs")
    if sharding.tp > 1 or case.options["split_mode"] == "tensor":
        if off:
            raise UsageError("split_mode tensor needs flash attention", "set flash_attn=on, or use --pp")
        raise UnsupportedError(
            "kvplan has no rule for llama.cpp's split_mode tensor", "use --pp: llama.cpp splits layers over GPUs"
        )


def _check_types(case: Case) -> None:
    type_k, type_v = case.chosen["k"], case.chosen["v"]
    latent = any(g.role == "latent" for g in case.groups)
    if latent and type_k != type_v and not build_of(case).latent_copy:
        raise UsageError(
            f"llama.cpp needs one cache type for a model with latents, not {type_k} and {type_v}",
            "give --kv, or the same type for --k and --v",
        )
    keys = case.chosen.get("latent", type_k)
    if case.chosen.get("index", keys) != keys:
        raise UsageError(f"llama.cpp keeps index keys in the type of K, {keys}", "drop --index")
    if type_v not in PLAIN_TYPES and without_flash_attention(case):
        grok = family(case.spec) in NO_FLASH_ATTENTION
        raise UsageError(
            f"llama.cpp needs flash attention for V in {type_v}" + (", which this architecture does not have" * grok),
            "give V as f16" if grok else "set flash_attn=on, or give V as f16",
        )


def _check_blocks(case: Case) -> None:
    """Blocks must divide every head; without flash attention the library aborts instead of refusing."""
    for group in case.groups:
        for tensor in group.layout.tensors:
            size = block(group.layout, tensor.role)
            if tensor.dim % size:
                option = case.chosen[tensor.role]
                raise UsageError(
                    f"llama.cpp: blocks of {size} of cache type {option} do not divide the head dimension {tensor.dim} "
                    f"of {tensor.role.upper()} (group {group.name})",
                    "use f16 for it",
                )


def _check_server(case: Case, server: Server) -> None:
    slots = case.options["n_parallel"]
    if slots and slots < case.sequences:
        raise UsageError(
            f"{slots} slots do not run {case.sequences} sequences at once", f"set n_parallel={case.sequences}"
        )
    tokens = min(server.n_ctx, server.n_ubatch)
    if family(case.spec) in ABORTS_UNLESS_EVEN and tokens % server.slots:
        raise UsageError(
            f"llama.cpp aborts for {case.spec.model_type} where {server.slots} slots do not divide a batch of "
            f"{tokens} tokens",
            "choose n_parallel and n_ubatch so that they divide",
        )


def notes(case: Case) -> Iterator[str]:
    """Defaults and assumptions that decide bytes."""
    name, options = family(case.spec), case.options
    states = any(g.role == "state" for g in case.groups)
    if case.mtp:
        yield "Prediction layers are a draft context of their own; its cache types (-ctkd, -ctvd) are f16."
    if options["n_rs_seq"] and states and name not in ROLLBACK and name:
        yield f"n_rs_seq has no effect: llama.cpp has no state snapshots for {case.spec.model_type}."
    if options["n_rs_seq"] and states and not name:
        yield "The architecture is not named; its states are taken to have n_rs_seq snapshots."
    if any(g.law.law in ("window", "chunk") for g in case.groups) and name not in WINDOWED | UNWINDOWED:
        which = case.spec.model_type or "this architecture, which the spec does not name"
        yield f"Assumed: llama.cpp keeps only the window for {which}."
    if options["cuda"] is None and case.capability is None and _uneven(case):
        yield "On CUDA quantised tensors take some bytes more; no GPU is named, so they are not counted (cuda=on)."
    if options["n_ctx"]:
        each = context_of(options["n_ctx"], options["n_parallel"] or max(case.sequences, 1), options["kv_unified"])
        yield f"n_ctx gives a stream {each:,} tokens; where the request needs more, more is planned."
    if options["n_parallel"] is None:
        yield SLOTS


def _uneven(case: Case) -> bool:
    return any(cuda_bytes(g.layout, t.role) for g in case.groups for t in g.layout.tensors)
