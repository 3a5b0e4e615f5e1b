"""What can be chosen for a request: an engine's versions and formats, and kvplan's usual formats without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.engines import load_engine
from kvplan.engines.shared.select import available, choose_version
from kvplan.errors import KvplanError
from kvplan.memory.groups import DTYPES, roles
from kvplan.plan import Plan, PlanRequest, compose, resolve
from kvplan.recommend.evidence import Evidence
from kvplan.recommend.timemodel import attention_seconds
from kvplan.specs.device import DeviceSpec
from kvplan.specs.model import ModelSpec

USUAL = (
    "int8:group/32", "int8:token", "int8:token,asym", "int8:head", "fp8_e4m3:token", "fp8_e4m3:tensor",
    "fp8_e4m3:head", "fp8_e5m2:tensor", "q8_0", "kivi4", "int4:group/32,asym", "int4:token,asym", "q4_0", "nvfp4",
    "mxfp4", "kivi2", "int2:group/32,asym",
)  # fmt: skip
USUAL_LATENT = ("fp8_e4m3:tensor", "fp8_e4m3:token", "fp8_e5m2:tensor", "int8:token", "fp8_ds_mla")


@dataclass(frozen=True, slots=True)
class FormatRow:
    """One format for K and V together, with the plan that it gives, or why it cannot be used.

    Attributes:
        kl: predicted error; None: not established.
        seconds: predicted decode attention of a step by kvplan's own kernels; None in an engine, without a GPU, or
            where no kernel was timed.
    """

    name: str
    plan: Plan | None = None
    kl: float | None = None
    seconds: float | None = None
    refused: str = ""


def versions(engine: str | None) -> tuple[str, ...]:
    """Covered versions, newest first; nothing without an engine."""
    return tuple(v.name for v in load_engine(engine).versions) if engine else ()


def formats(spec: ModelSpec, engine: str | None, version: str | None) -> tuple[str, ...]:
    """Formats to choose from, the model's own or the engine's default first."""
    present = roles(spec)
    if engine is None:
        usual = USUAL if "k" in present else USUAL_LATENT if "latent" in present else ()
        return (DTYPES[spec.native_dtype], *usual)
    known = load_engine(engine)
    found = available(known, choose_version(known, version))
    usable = [f.option for f in found if any(getattr(f, role) for role in present)]
    return tuple(usable or [found[0].option])


def takes_both(spec: ModelSpec, engine: str | None) -> bool:
    """Whether K and V can be chosen apart."""
    return "k" in roles(spec) and (engine is None or load_engine(engine).apart)


def format_fields(spec: ModelSpec, engine: str | None, k: str | None, v: str | None) -> dict[str, str]:
    """The fields of a request that mean these formats; None: the default, or for V the same as K."""
    present = roles(spec)
    if "k" in present and v is not None and v != k and takes_both(spec, engine):
        return {"k": k, "v": v} if k is not None else {"v": v}
    if k is None:
        return {}
    return {"latent": k} if engine is None and "latent" in present and "k" not in present else {"kv": k}


def with_formats(request: PlanRequest, spec: ModelSpec, k: str | None, v: str | None) -> PlanRequest:
    """The request with other formats."""
    none = dict.fromkeys(("kv", "k", "v", "latent"))
    return request.model_copy(update={**none, **format_fields(spec, request.engine, k, v)})


def compare_formats(request: PlanRequest, spec: ModelSpec, device: DeviceSpec | None) -> Iterator[FormatRow]:
    """A plan of every format that can be chosen, with all else as in the request."""
    evidence = Evidence(spec)
    for name in formats(spec, request.engine, request.engine_version):
        try:
            resolved = resolve(with_formats(request, spec, name, None), spec, device)
            plan = compose(resolved)
        except KvplanError as error:
            yield FormatRow(name, refused=error.message)
            continue
        seconds = None
        if device and request.context and request.engine is None:
            seconds = attention_seconds(resolved, device)
        asked = plan.request
        quality = None if asked.layers else evidence.of(asked.k, asked.v, asked.latent)
        yield FormatRow(name, plan, quality.kl if quality else None, seconds)


def undominated(rows: list[FormatRow]) -> list[FormatRow]:
    """The Pareto set in bytes and predicted error: no other row is as good in both and better in one."""
    points = {r.name: (r.plan.kv.allocated_bytes, r.kl) for r in rows if r.plan and r.plan.kv and r.kl is not None}
    return [
        row
        for row in rows
        if (mine := points.get(row.name))
        and not any(b <= mine[0] and kl <= mine[1] and (b, kl) != mine for b, kl in points.values())
    ]
