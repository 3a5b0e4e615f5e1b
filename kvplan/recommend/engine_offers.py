"""What an engine, in a version, on a GPU, can store: the values of its own option, and what is left out and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvplan.engines import engine_names, load_engine
from kvplan.engines.shared.select import available, choose_version
from kvplan.engines.shared.types import NATIVE, EngineFormat
from kvplan.formats.grammar import PLAIN
from kvplan.plan.engine import capability_of
from kvplan.recommend.evidence import bare
from kvplan.recommend.types import RecommendRequest
from kvplan.specs.device import DeviceSpec

RESEARCH = "research kernels of kvplan only: no engine stores it"


@dataclass(frozen=True)
class Offer:
    """One choice: its name and the fields of a plan request that mean it."""

    name: str
    fields: dict[str, str]


def engine_offers(
    request: RecommendRequest, present: frozenset[str], device: DeviceSpec
) -> tuple[list[Offer], dict[str, str]]:
    """(choices with the default first, format to why it is left out).

    Raises:
        UsageError: unknown engine, or a version without rules, with the nearest that exists.
    """
    assert request.engine is not None
    engine = load_engine(request.engine)
    version = choose_version(engine, request.engine_version)
    there, capability = available(engine, version), capability_of(device)
    refused = {f.option: f"{engine.title} {version} does not have it" for f in engine.formats if f not in there}
    usable = []
    for f in there:
        if present and not any(getattr(f, role) for role in present):
            # For another kind of cache: nothing to choose.
            continue
        if f is not there[0] and _sixteen(f, present):
            # One unquantised cache is enough to compare with: the engine's default.
            continue
        if not f.launchable:
            refused[f.option] = f"the command of {engine.title} cannot choose it: another tool builds it ({f.needs})"
        elif capability and f.capabilities and not any(low <= capability <= high for low, high in f.capabilities):
            refused[f.option] = (
                f"no kernel on {device.name} (compute capability {device.compute_capability}): {f.needs}"
            )
        else:
            usable.append(f)
    usable = usable if present else usable[:1]
    options = [f.option for f in usable] or [there[0].option]
    if engine.apart and "k" in present:
        return [Offer(_pair(k, v), {"k": k, "v": v}) for k in options for v in options], refused
    return [Offer(option, {"kv": option}) for option in options], refused


def _sixteen(f: EngineFormat, present: frozenset[str]) -> bool:
    return all(getattr(f, role) in (NATIVE, *PLAIN, "") for role in present - {"index"})


def _pair(k: str, v: str) -> str:
    return k if k == v else f"{k} / {v}"


def support(k: str | None, v: str | None, latent: str | None, native: str) -> str:
    """Where formats run that were chosen without an engine: the same codes, whatever the engine's packing."""
    if {k, v, latent} <= {None, native}:
        return "every engine"
    asked = [None if f is None else bare(f) for f in (k, v, latent)]
    found = [f"{title} {options}" for title, rows in _stored() if (options := _options(rows, asked, native))]
    return f"ready: {', '.join(found)}" if found else RESEARCH


def engine_support(request_engine: str, options: dict[str, str], launch: bool) -> str:
    """Where an engine's own formats run."""
    engine = load_engine(request_engine)
    picked = [f for f in engine.formats if f.option in options.values()]
    needs = "; ".join(dict.fromkeys(f.needs for f in picked if f.needs))
    ready = "ready flag" if launch or engine.launch else "ready setting"
    return f"{ready} of {engine.title}" + (f" ({needs})" if needs else "")


Rows = tuple[bool, tuple[tuple[str, tuple[str, str, str]], ...]]


@cache
def _stored() -> tuple[tuple[str, Rows], ...]:
    """Every engine: whether K and V have an option each, and of its newest version option and (k, v, latent)."""
    found = []
    for name in engine_names():
        engine = load_engine(name)
        formats = [f for f in available(engine, engine.versions[0].name) if f.launchable]
        found.append((engine.title, (engine.apart, tuple((f.option, _spelled(f)) for f in formats))))
    return tuple(found)


def _spelled(f: EngineFormat) -> tuple[str, str, str]:
    k, v, latent = (s if s in ("", NATIVE) else bare(s) for s in (f.k, f.v, f.latent))
    return k, v, latent


def _options(rows: Rows, asked: list[str | None], native: str) -> str:
    """The engine's option, or options, for these formats; empty if it has none."""
    apart, formats = rows

    def holds(i: int, stored: tuple[str, str, str]) -> bool:
        return asked[i] is None or stored[i] == asked[i] or (stored[i] == NATIVE and asked[i] == native)

    if not apart:
        return next((option for option, stored in formats if all(holds(i, stored) for i in range(3))), "")
    # K and V have an option each, so they need not be of one format.
    each = [next((o for o, stored in formats if holds(i, stored)), "") for i in range(3) if asked[i] is not None]
    return " / ".join(dict.fromkeys(each)) if all(each) else ""
