"""Enumerates the format pairs for K and V (or the latent's formats) and computes what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN
from kvplan.formats.layout import BoundTensor
from kvplan.memory.groups import DTYPES, roles
from kvplan.plan import PlanRequest, compose, resolve
from kvplan.plan.resolve import Resolved
from kvplan.recommend.evidence import RANKED_NUMBERS, known_kl
from kvplan.recommend.timemodel import attention_seconds
from kvplan.recommend.types import Candidate, RecommendRequest
from kvplan.specs.device import DeviceSpec
from kvplan.specs.model import ModelSpec

PAIRED = (
    "int8:token", "int8:token,asym", "int8:group/32", "int8:head", "int8:tensor", "int8:channel", "int8:channel/32",
    "fp8_e4m3:tensor", "fp8_e4m3:head", "fp8_e4m3:token", "fp8_e5m2:tensor", "int2:token",
)  # fmt: skip
LATENT = ("fp8_e4m3:tensor", "fp8_e4m3:token", "fp8_e5m2:tensor", "int8:token")


@dataclass(frozen=True)
class Refused:
    """A format that the engine has and this model or GPU cannot use, with the reason."""

    formats: dict[str, str]
    reason: str


def enumerate_candidates(
    request: RecommendRequest, spec: ModelSpec, device: DeviceSpec
) -> tuple[tuple[Candidate, ...], tuple[Refused, ...]]:
    """Every choice of formats, the unquantised one first, and what an engine refuses.

    Raises:
        UsageError, UnsupportedError: as `kvplan.plan.make_plan`, where not even the unquantised cache can be planned.
    """
    choices = list(_choices(request, spec))
    made, refused = [_candidate(request, spec, device, choices[0])], []
    for formats in choices[1:]:
        try:
            found = _candidate(request, spec, device, formats)
            # An engine's `auto` and `bfloat16` are one choice.
            same = (found.k, found.v, found.latent) == (made[0].k, made[0].v, made[0].latent)
            if not same or found.allocated_bytes != made[0].allocated_bytes:
                made.append(found)
        except (UsageError, UnsupportedError) as error:
            if request.engine is None:
                raise
            refused.append(Refused(formats, error.message))
    return tuple(made), tuple(refused)


def _choices(request: RecommendRequest, spec: ModelSpec) -> Iterator[dict[str, str]]:
    """Every pair for a model with K and V, every latent format for one with a latent, one choice for states."""
    native, present = DTYPES[spec.native_dtype], roles(spec)
    if request.engine:
        yield from _engine_choices(request, present)
    elif "k" in present:
        yield from ({"k": k, "v": v} for k in (native, *PAIRED) for v in (native, *PAIRED))
    elif "latent" in present:
        yield from ({"latent": latent} for latent in (native, *LATENT))
    else:
        yield {}


def _engine_choices(request: RecommendRequest, present: frozenset[str]) -> Iterator[dict[str, str]]:
    """The values of the engine's own option: pairs of them where it has one each for K and V."""
    from kvplan.engines import load_engine
    from kvplan.engines.shared.select import available, choose_version

    assert request.engine is not None
    engine = load_engine(request.engine)
    formats = available(engine, choose_version(engine, request.engine_version))
    usable = [f.option for f in formats if any(getattr(f, role) for role in present)] if present else []
    if engine.apart and "k" in present:
        yield from ({"k": k, "v": v} for k in usable for v in usable)
    else:
        yield from ({"kv": option} for option in usable or [formats[0].option])


def _candidate(request: RecommendRequest, spec: ModelSpec, device: DeviceSpec, formats: dict[str, str]) -> Candidate:
    fields = request.model_dump(exclude={"concurrency"}) | {"batch": request.concurrency} | formats
    resolved = resolve(PlanRequest.model_validate(fields), spec, device)
    plan = compose(resolved)
    assert (
        plan.kv is not None and plan.capacity is not None and plan.verdict is not None and request.context is not None
    )
    echo = plan.request
    kl = known_kl(echo)
    # The time model is of kvplan's own kernels: it says nothing about an engine's.
    own = request.engine is None
    seconds = attention_seconds(resolved.groups, request.context, request.concurrency, device) if own else None
    untimed = own and seconds is None and echo.k is not None
    low = any(t.number not in RANKED_NUMBERS for t in _tensors(resolved))
    return Candidate(
        k=echo.k,
        v=echo.v,
        latent=echo.latent,
        engine_formats=plan.engine.formats if plan.engine else {},
        launch=plan.engine.launch.text if plan.engine and plan.engine.launch else None,
        allocated_bytes=plan.kv.allocated_bytes + plan.kv.constant_bytes,
        requests=plan.capacity.requests or 0,
        fits=plan.verdict.fits,
        capacity_gain=plan.gain.fixed_requests.ratio.value if plan.gain else 1.0,
        predicted_attention_seconds=seconds,
        kl=kl,
        ranked=kl is not None and not low and not untimed,
        pareto=False,
        reason=_reason(resolved, device, low, kl, untimed),
    )


def _tensors(resolved: Resolved) -> list[BoundTensor]:
    """The tensors that a candidate's formats store."""
    return [t for g in resolved.groups for t in g.layout.tensors if g.role in ("kv", "latent")]


def _reason(resolved: Resolved, device: DeviceSpec, low: bool, kl: float | None, untimed: bool) -> str:
    """What speaks for and against, in one line with the bytes of a (token, head)."""
    tensors = _tensors(resolved)
    if not tensors:
        return "states only: a KV format has no effect"
    parts = [_row_text(resolved)]
    seen = {t.spelling: t for t in tensors}.values()
    if all(t.number in PLAIN for t in seen):
        parts.append("the model's own dtype, no loss")
    if any(t.granularity in ("tensor", "head", "channel") and not t.group for t in seen):
        parts.append("static scales: calibrate, and values outside are clipped")
    if any(t.granularity in ("token", "group") for t in seen):
        parts.append("scales come with the rows: no calibration")
    if any(t.recent for t in seen):
        parts.append("needs unquantised recent rows")
    floats = {t.number for t in seen if t.number.startswith("fp8")}
    if resolved.request.layers:
        parts.append(f"layers {', '.join(resolved.request.layers)} stay as they are")
    if floats and device.hardware_formats and not floats <= set(device.hardware_formats):
        parts.append(f"{device.name} has no hardware conversion for {', '.join(sorted(floats))}")
    if low:
        parts.append("unranked: quality not established")
    elif kl is None:
        parts.append("unranked: no quality figure for this format yet")
    elif untimed:
        parts.append("unranked: no kernel has been timed for it yet")
    return "; ".join(parts)


def _row_text(resolved: Resolved) -> str:
    # Most layers: an engine may leave the first and last ones unquantised.
    group = max((g for g in resolved.groups if g.role in ("kv", "latent")), key=lambda g: g.layers)
    page, heads = group.layout.page_multiple, group.layout.heads
    each = group.layout.page_bytes(page) / (page * heads)
    return f"{each:g} bytes per {'token and KV head' if group.role == 'kv' else 'token'}"
