"""The choice: among 16 and 8 bit with known quality, the least loss that fits; if nothing fits, the most requests."""

from __future__ import annotations

from kvplan import __version__
from kvplan.engines import load_engine
from kvplan.engines.shared.select import choose_version
from kvplan.plan.compose import device_summary, model_summary
from kvplan.recommend.candidates import enumerate_candidates
from kvplan.recommend.evidence import BASIS
from kvplan.recommend.types import Candidate, Choice, Recommendation, RecommendRequest
from kvplan.specs.load import load_device, load_model
from kvplan.units import format_bytes

NEAR = 0.97
"""When nothing fits, a candidate with this share of the most requests counts as good as the one with most."""
NO_ENGINE = "This names a format, not an engine's flag: --engine NAME says what an engine has."
ENGINE_TIME = "Times are not predicted: kvplan's time model is of its own kernels, not of an engine's."
PREDICTED = (
    "Times are predicted (fixed time plus bytes over a share of the read roof), not measured: see kvplan validate."
)


def recommend(request: RecommendRequest) -> Recommendation:
    """Compute every candidate, mark the Pareto set, choose one and say why.

    Raises:
        UsageError, InputError, UnsupportedError: as `kvplan.plan.make_plan`.
    """
    spec, device = load_model(request.model), load_device(request.gpu)
    notes = [] if request.engine else [NO_ENGINE, PREDICTED]
    if request.context is None:
        request = request.model_copy(update={"context": spec.max_context})
        notes.insert(0, f"No context given: compared at the model's maximum, {spec.max_context:,} tokens.")
    found, refused = enumerate_candidates(request, spec, device)
    if request.engine:
        version = choose_version(load_engine(request.engine), request.engine_version)
        request = request.model_copy(update={"engine_version": version})
        notes += [ENGINE_TIME, *(f"Not offered: {_asked(r.formats)}: {r.reason}." for r in refused)]
    candidates = tuple(c.model_copy(update={"pareto": c.ranked and _undominated(c, found)}) for c in found)
    order = _ranking(candidates, request.concurrency)
    best = order[0]
    native = candidates[0]
    runner = next((c for c in order[1:] if c.pareto), order[1] if len(order) > 1 else None)
    return Recommendation(
        request=request,
        model=model_summary(spec),
        device=device_summary(device),
        recommended=_choice(best, _why(best, native, request)),
        runner_up=_choice(runner, _why_not(runner, best)) if runner else None,
        candidates=tuple(sorted(candidates, key=lambda c: (not c.ranked, c.allocated_bytes, c.k or "", c.v or ""))),
        quality_basis=BASIS,
        notes=tuple(notes),
        versions={"kvplan": __version__},
    )


def _undominated(c: Candidate, others: tuple[Candidate, ...]) -> bool:
    """Whether no other ranked candidate is at least as good in all three objectives and better in one."""
    mine = _objectives(c)
    rivals = (_objectives(o) for o in others if o.ranked)
    return not any(all(a <= b for a, b in zip(r, mine, strict=True)) and r != mine for r in rivals)


def _objectives(c: Candidate) -> tuple[float, float, float]:
    seconds = c.predicted_attention_seconds
    return (c.allocated_bytes, float("inf") if seconds is None else seconds, c.kl or 0.0)


def _ranking(candidates: tuple[Candidate, ...], concurrency: int) -> list[Candidate]:
    """Ranked candidates, best first."""
    ranked = [c for c in candidates if c.ranked]
    if any(c.fits for c in ranked):
        return sorted(ranked, key=lambda c: (not c.fits, c.kl or 0.0, c.allocated_bytes))
    enough = NEAR * max(c.requests for c in ranked)
    return sorted(ranked, key=lambda c: (c.requests < enough, c.kl or 0.0, c.allocated_bytes))


def _asked(formats: dict[str, str]) -> str:
    return " with ".join(formats.values())


def _choice(c: Candidate, reason: str) -> Choice:
    return Choice(k=c.k, v=c.v, latent=c.latent, engine_formats=c.engine_formats, launch=c.launch, reason=reason)


def name(c: Candidate | Choice) -> str:
    """`K int8, V int8`, `latent bf16` or `states only`; with an engine, in its own words."""
    own = c.engine_formats
    parts = [
        f"{role.upper() if len(role) == 1 else role} {own.get(role, f)}"
        for role in ("k", "v", "latent")
        if (f := getattr(c, role))
    ]
    return ", ".join(parts) or "states only"


def _why(c: Candidate, native: Candidate, request: RecommendRequest) -> str:
    wanted = f"{request.concurrency:,} requests of {request.context:,} tokens"
    need = f"{format_bytes(c.allocated_bytes)} on each GPU"
    if c.requests == 0:
        return f"not one request of {request.context:,} tokens fits beside the weights in any ranked format: raise tp"
    if c == native and c.fits:
        return f"{wanted} fit in the model's own dtype ({need}; {c.requests:,} would fit), so nothing need be lost"
    if c == native:
        return f"no other format has known quality here; {c.requests:,} of the wanted {wanted} fit"
    if c.fits:
        return (
            f"{wanted} do not fit in {name(native)} ({native.requests:,} do); "
            f"{name(c)} is the least loss that fits: {need}, {c.requests:,} fit, "
            f"{c.capacity_gain:.2f}x the tokens per byte"
        )
    return (
        f"{wanted} fit in no 16- or 8-bit format; {name(c)} holds {c.requests:,} "
        f"({native.requests:,} in {name(native)}): lower the concurrency or context, or raise tp"
    )


def _why_not(c: Candidate, best: Candidate) -> str:
    loss = f"{(c.kl or 0.0) - (best.kl or 0.0):+.5f} KL"
    now, then = best.predicted_attention_seconds, c.predicted_attention_seconds
    speed = f", predicted attention {now / then:.2f}x as fast" if now and then else ""
    return f"{c.requests:,} requests fit against {best.requests:,}{speed}; lost by {loss}"
