"""`kvplan recommend`: search, choose, explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kvplan import __version__
from kvplan.engines import load_engine
from kvplan.engines.shared.select import choose_version
from kvplan.formats.grammar import PLAIN
from kvplan.memory.groups import DTYPES
from kvplan.plan.compose import device_summary, model_summary
from kvplan.plan.launch import launch_of
from kvplan.recommend.bounds import Bounds, bounds_of
from kvplan.recommend.choose import choose
from kvplan.recommend.config import config_text
from kvplan.recommend.effects import effects
from kvplan.recommend.engine_offers import engine_support, support
from kvplan.recommend.evidence import Body, Evidence
from kvplan.recommend.explain import changes, name, why, why_not
from kvplan.recommend.latency import Measured, step_range
from kvplan.recommend.relax import relaxations
from kvplan.recommend.scored import Scored, Scorer, pareto
from kvplan.recommend.search import Say, Search
from kvplan.recommend.types import (
    Candidate,
    CapacityResult,
    Choice,
    LatencyResult,
    Layout,
    QualityResult,
    Recommendation,
    RecommendRequest,
    StepResult,
)
from kvplan.specs.load import load_device, load_model

NO_ENGINE = "This names formats, not an engine's flags: --engine NAME says what an engine has."
SPREAD = "Step times and throughput are ranges from a model of the step, not measurements; kvplan validate measures."


def recommend(
    request: RecommendRequest,
    bodies: Sequence[Body] = (),
    measured: Measured | None = None,
    say: Say = lambda _: None,
    exhaustive: bool = False,
) -> Recommendation:
    """Compute every choice that can be best, choose one and say why.

    Args:
        bodies: evidence of quality of this very model.
        measured: attention times of a validation report.
        say: told what is being computed.

    Raises:
        UsageError: bounds that contradict each other, an unknown engine version, an illegal layout.
        InputError, UnsupportedError: as `kvplan.plan.make_plan`.
    """
    bounds = bounds_of(request)
    spec, device = load_model(request.model), load_device(request.gpu)
    notes = [] if request.engine else [NO_ENGINE]
    if request.context is None:
        request = request.model_copy(update={"context": spec.max_context})
        notes.insert(0, f"No context given: compared at the model's maximum, {spec.max_context:,} tokens.")
    if request.engine:
        version = choose_version(load_engine(request.engine), request.engine_version)
        request = request.model_copy(update={"engine_version": version})
    evidence = Evidence(spec, bodies)
    search = Search(request, spec, device, evidence, Scorer(evidence, device, bounds, measured))
    found = search.run(exhaustive, say)
    chosen = choose(found.choices, bounds)
    front = pareto(found.choices)
    shown = chosen.best or chosen.runner
    assert shown is not None
    described = _Describe(found.choices, front, bounds, request)
    alike = [c for c in found.choices if _plain(c) and c.resolved.sharding == shown.resolved.sharding]
    native = described.native(shown)
    best, runner = chosen.best, chosen.runner
    if shown.seconds is not None:
        notes.append(SPREAD)
    return Recommendation(
        request=request,
        model=model_summary(spec),
        device=device_summary(device),
        bounds=bounds.words,
        recommended=described.choice(best, why(best, native, request, bounds)) if best else None,
        runner_up=described.choice(runner, why_not(runner, best, bounds)) if runner else None,
        relax=() if best else tuple(relaxations(found.choices, request, bounds)),
        changes=tuple(changes(chosen, found.choices, request, bounds)),
        warnings=tuple(effects(shown, native, found.choices)),
        candidates=tuple(described.candidate(c) for c in _listed([*front, *alike])),
        refused=found.refused,
        searched=len(found.choices),
        notes=tuple(notes),
        versions={"kvplan": __version__},
    )


def _plain(c: Scored) -> bool:
    """One format for K and V, and no layers apart but those that an engine keeps by itself."""
    k, v, _ = c.formats
    return k == v and (c.resolved.engine is not None or not c.resolved.request.layers)


def _listed(choices: list[Scored]) -> list[Scored]:
    """Smallest cache first, each once."""
    once = {id(c): c for c in choices}.values()
    return sorted(once, key=lambda c: (-c.tokens, c.loss, c.burden))


class _Describe:
    """Candidates as they are shown."""

    def __init__(self, choices: list[Scored], front: list[Scored], bounds: Bounds, request: RecommendRequest) -> None:
        self._front, self._bounds, self._request = {id(c) for c in front}, bounds, request
        self._natives = {
            c.resolved.sharding: c
            for c in reversed(choices)
            if all(f is None or f in PLAIN for f in c.formats) and not c.resolved.request.layers
        }

    def native(self, c: Scored) -> Scored | None:
        """The unquantised cache in the same layout."""
        return self._natives.get(c.resolved.sharding)

    def choice(self, c: Scored, reason: str) -> Choice:
        launch = launch_of(c.resolved)
        return Choice(
            candidate=self.candidate(c),
            reason=reason,
            launch=launch.text if launch else None,
            config=config_text(c, self._request, self._bounds),
        )

    def candidate(self, c: Scored) -> Candidate:
        r, chosen, layout = c.resolved.request, c.resolved.engine, c.resolved.sharding
        native, device = self.native(c), c.resolved.device
        assert device is not None
        span, basis = step_range(c.resolved, device, c.seconds, c.basis)
        wanted = self._request.concurrency
        gain = native.held_bytes / c.held_bytes if native and c.held_bytes else 1.0
        faster = native.seconds / c.seconds if native and native.seconds and c.seconds else None
        native_dtype = DTYPES[c.resolved.spec.native_dtype]
        return Candidate(
            k=r.k,
            v=r.v,
            latent=r.latent,
            layers=r.layers,
            page_size=c.resolved.page_size,
            layout=Layout(tp=layout.tp, dp=layout.dp, dcp=layout.dcp, dp_attention=layout.dp_attention),
            engine_formats={x: o for x, o in chosen.formats.items() if getattr(r, x)} if chosen else {},
            support=engine_support(chosen.engine.name, chosen.formats, launch_of(c.resolved) is not None)
            if chosen
            else support(r.k, r.v, r.latent, native_dtype),
            fits=c.fits,
            capacity=CapacityResult(allocated_bytes=c.held_bytes, requests=c.requests, tokens=c.tokens, gain=gain),
            attention=LatencyResult(seconds=c.seconds, basis=c.basis, gain=faster),
            step=StepResult(
                floor_seconds=c.floor,
                seconds=span,
                tokens_per_second=(wanted / span[1], wanted / span[0]) if span and c.fits else None,
                basis=basis,
            ),
            quality=QualityResult(**asdict(c.quality)) if c.quality else None,
            obstacles=c.obstacles,
            pareto=id(c) in self._front,
        )


__all__ = ["name", "recommend"]
