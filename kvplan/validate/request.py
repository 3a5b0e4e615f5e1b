"""From the command line's words to a complete request: defaults, limits, formats that have kernels."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN, parse_any
from kvplan.specs.model import ModelSpec
from kvplan.units import check_count
from kvplan.validate.candidates import ALL
from kvplan.validate.kinds.base import Group, Kind
from kvplan.validate.kinds.table import kind_of
from kvplan.validate.report import PHASES, PhaseName, ValidationRequest
from kvplan.validate.subject import choose_group, planned

NATIVE = {"float16": "fp16", "bfloat16": "bf16"}
CPU_CONTEXT, CPU_BATCH, CPU_LIMIT = 300, 2, 2048
GPU_CONTEXT, GPU_BATCH = 32768, 16


def make_request(
    spec: ModelSpec,
    *,
    context: int | None,
    batch: int | None,
    formats: Sequence[str] = (),
    latents: Sequence[str] = (),
    device: str,
    page_size: int | None,
    seed: int,
    tensors: str | None = None,
    phases: Sequence[PhaseName] = ("decode",),
    tune: bool = True,
    layer_group: str | None = None,
) -> ValidationRequest:
    """Fill in every default and refuse what cannot run.

    Args:
        formats: spellings of --kv; `all` stands for every kind that has kernels for this model.
        latents: spellings of --latent.
        tensors: path of a capture file for the format errors.
        phases: what to run on each cache; always in the order of `PHASES`.
        tune: whether launch shapes may be searched on a GPU that the table was not measured on.
        layer_group: name of the group that runs; without it the first that kernels read and that keeps all tokens.

    Raises:
        UsageError: no such group, a context above the model's maximum, or too large for the interpreter.
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
    group = choose_group(spec, layer_group)
    kind = kind_of(group)
    _check_phases(spec, kind, phases)
    usual = () if latents else kind.usual(group)
    named = [kind.carried(f, spec) for f in formats or usual if f != ALL]
    named += [parse_any(f).spelling for f in _own(spec, kind, latents) if f != ALL]
    refused: dict[str, str] = {}
    if ALL in (*formats, *latents):
        every, refused = split_by_model(spec, group, context, batch, page_size)
        named += [kind.carried(f, spec) for f in every]
    chosen = list(dict.fromkeys([dtype, *(_sixteen(f, dtype) for f in named)]))
    plans = [planned(spec, f, context, batch, page_size, group) for f in chosen]
    for plan in plans:
        kind.check(plan.group(group.name).layout, plan.page_size)
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
        phases=tuple(p for p in PHASES if p in phases),
        not_for_model=refused,
        tune=tune,
        layer_group=layer_group,
    )


def _default_context(spec: ModelSpec, cpu: bool) -> int:
    return min(CPU_CONTEXT if cpu else GPU_CONTEXT, spec.max_context)


def split_by_model(
    spec: ModelSpec, group: Group, context: int, batch: int, page_size: int | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The candidates of `all` that this model's geometry can have, and the others with the reason."""
    kind, good, bad = kind_of(group), [], {}
    for text in kind.every(group):
        try:
            plan = planned(spec, text, context, batch, page_size, group)
            kind.check(plan.group(group.name).layout, plan.page_size)
            good.append(text)
        except (UnsupportedError, UsageError) as error:
            bad[text] = error.message
    return tuple(good), bad


def _own(spec: ModelSpec, kind: Kind, latents: Sequence[str]) -> Sequence[str]:
    """What --latent names, refused for a model that has none."""
    if latents and kind.option != "latent":
        raise UsageError(f"--latent has no effect: what is validated of {spec.id} is {kind.words}", "use --kv")
    return latents


def _check_phases(spec: ModelSpec, kind: Kind, phases: Sequence[PhaseName]) -> None:
    missing = [p for p in PHASES if p in phases and p not in kind.phases]
    if missing:
        there = " ".join(f"--phase {p}" for p in kind.phases)
        verb = "is" if len(missing) == 1 else "are"
        text = f"{' and '.join(missing)} {verb} not available for {kind.words} of {spec.id}"
        raise UnsupportedError(text, f"use {there}")


def _sixteen(spelling: str, dtype: str) -> str:
    """A candidate; 16 bit is always the model's own dtype, the baseline."""
    if spelling.startswith("fp32"):
        raise UnsupportedError(f"format {spelling} has no kernel yet", f"use {dtype}, an 8-bit or a smaller format")
    return dtype if spelling in PLAIN else spelling
