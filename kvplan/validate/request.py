"""From the command line's words to a complete request: defaults, limits, memory. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan_kernels.codecs.limits import check_kernel

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN, parse_kv
from kvplan.specs.model import ModelSpec
from kvplan.units import cdiv, check_count, format_bytes
from kvplan.validate.report import ValidationRequest
from kvplan.validate.subject import choose_group, geometry, planned

CANDIDATES = ("int8:token", "int8:head", "fp8_e4m3:tensor", "fp8_e4m3:head")
NATIVE = {"float16": "fp16", "bfloat16": "bf16"}
CPU_CONTEXT, CPU_BATCH, CPU_LIMIT = 300, 2, 2048
GPU_CONTEXT, GPU_BATCH = 32768, 16
SMALLEST_ROTATION = 2


def make_request(
    spec: ModelSpec,
    *,
    context: int | None,
    batch: int | None,
    formats: Sequence[str],
    device: str,
    page_size: int | None,
    seed: int,
    tensors: str | None = None,
) -> ValidationRequest:
    """Fill in every default and refuse what cannot run.

    Args:
        tensors: path of a capture file for the format errors.

    Raises:
        UsageError: a context above the model's maximum, or too large for the interpreter.
        UnsupportedError: a model or format without kernels.
    """
    cpu = device == "cpu"
    context = check_count(context if context is not None else _default_context(spec, cpu), "context")
    batch = check_count(batch if batch is not None else (CPU_BATCH if cpu else GPU_BATCH), "batch")
    if context > spec.max_context:
        raise UsageError(
            f"context {context:,} is above the maximum of {spec.id}, {spec.max_context:,}",
            f"use at most {spec.max_context}",
        )
    if cpu and context * batch > CPU_LIMIT:
        raise UsageError(
            f"{batch} x {context:,} tokens are too many for Triton's interpreter",
            f"keep batch x context at or below {CPU_LIMIT:,} with --device cpu, or use a GPU",
        )
    dtype = NATIVE.get(spec.native_dtype)
    if dtype is None:
        raise UnsupportedError(
            f"{spec.id} is {spec.native_dtype}; the kernels read fp16 and bf16 rows", "pick a 16-bit model"
        )
    group = choose_group(spec)
    chosen = list(dict.fromkeys([dtype, *(_checked(f, dtype) for f in (formats or CANDIDATES))]))
    plans = [planned(spec, f, context, batch, page_size) for f in chosen]
    for plan in plans:
        check_kernel(plan.group(group.name).layout)
    return ValidationRequest(
        model=spec.id,
        context=context,
        batch=batch,
        formats=tuple(chosen),
        device="cpu" if cpu else "cuda",
        page_size=max(plan.page_size for plan in plans),
        seed=seed,
        dtype=dtype,
        tensors_file=tensors,
    )


def _default_context(spec: ModelSpec, cpu: bool) -> int:
    return min(CPU_CONTEXT if cpu else GPU_CONTEXT, spec.max_context)


def _checked(text: str, dtype: str) -> str:
    """The canonical spelling of a candidate; 16 bit is always the model's own dtype, the baseline."""
    fmt = parse_kv(text)
    if fmt.spelling.startswith("fp32"):
        raise UnsupportedError(f"format {fmt.spelling} has no kernel yet", "use int8 or fp8_e4m3")
    return dtype if fmt.spelling in PLAIN else fmt.spelling


def memory_needed(request: ValidationRequest, spec: ModelSpec) -> int:
    """Bytes of device memory at the peak: originals and a dense copy of them, rotating caches, float64 scratch."""
    group = choose_group(spec)
    g = geometry(group, request.context, request.batch)
    row = 2 * g.kv_heads * (g.k_dim + g.v_dim)
    dense = g.batch * g.tokens * row
    layers = len(spec.positions(group))
    held = max(planned(spec, f, request.context, request.batch, request.page_size).held_bytes for f in request.formats)
    rotation = max(SMALLEST_ROTATION * cdiv(held, layers), 10**9)
    scratch = 12 * g.tokens * row
    # Originals, SDPA's two dense copies or the unfused path's one, whichever is more beside the rotating caches.
    return 3 * dense + rotation + scratch


def check_memory(request: ValidationRequest, spec: ModelSpec, free_bytes: int) -> None:
    """Refuse before anything is allocated.

    Raises:
        UsageError: naming the largest batch that fits.
    """
    need = memory_needed(request, spec)
    if need <= free_bytes:
        return
    batch = request.batch
    while batch > 1 and memory_needed(request.model_copy(update={"batch": batch}), spec) > free_bytes:
        batch //= 2
    raise UsageError(
        f"validation needs about {format_bytes(need)} of GPU memory, {format_bytes(free_bytes)} are free",
        f"use --batch {batch}" if batch < request.batch else "use a shorter --context",
    )
