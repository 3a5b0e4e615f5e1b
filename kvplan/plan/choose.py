"""Which format each tensor of a model gets: the options of a request, carried over to the tensors that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import UsageError, did_you_mean
from kvplan.formats import ds_mla
from kvplan.formats.grammar import PLAIN, Format, Named, Pair, parse_any, parse_kv
from kvplan.memory.groups import DTYPES, CacheFormats, roles
from kvplan.plan.types import PlanRequest

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

ROLES = ("k", "v", "latent", "index")
_KV_HINT = "give --kv for both, or --k and --v"


def choose(request: PlanRequest, spec: ModelSpec) -> tuple[CacheFormats, tuple[str, ...]]:
    """The cache configuration without rules for single layers, and notes on options without effect."""
    present = roles(spec)
    native = Format(DTYPES[spec.native_dtype])
    both = parse_kv(request.kv) if request.kv else None
    chosen: dict[str, Format | Named] = {}
    for role in ROLES:
        given = getattr(request, role)
        chosen[role] = parse_any(given) if given else native
    if both is not None:
        for role, one in (("k", side(both, "k")), ("v", side(both, "v"))):
            if getattr(request, role) and chosen[role] != one:
                raise UsageError(f"--kv {request.kv} and --{role} {getattr(request, role)} contradict", _KV_HINT)
            chosen[role] = one
        if "latent" in present and not request.latent:
            chosen["latent"] = for_latent(both, spec, present)
    notes = [_no_effect(role, spec) for role in ROLES if getattr(request, role) and role not in present]
    if both is not None and not present & {"k", "v", "latent"}:
        notes.append(f"A KV format has no effect: {spec.id} keeps only states, one copy per sequence.")
    recurrent, conv = (_state_dtype(name, getattr(request, name)) for name in ("state_dtype", "conv_dtype"))
    if (recurrent or conv) and not any(group.kind == "state" for group in spec.layer_groups):
        notes.append(f"--state-dtype and --conv-dtype have no effect: {spec.id} has no states.")
    k, v, latent, index = (chosen[role] for role in ROLES)
    return CacheFormats(k, v, latent, index, recurrent, conv), tuple(notes)


def _state_dtype(name: str, given: str | None) -> str | None:
    if given is not None and given not in PLAIN:
        option = name.replace("_", "-")
        raise UsageError(f"unknown {option} {given!r}", did_you_mean(given, PLAIN))
    return given


def side(both: Format | Named | Pair, role: str) -> Format | Named:
    """K's or V's half of what `--kv` names."""
    if isinstance(both, Pair):
        return both.k if role == "k" else both.v
    return both


def for_latent(both: Format | Named | Pair, spec: ModelSpec, present: frozenset[str]) -> Format | Named:
    """What --kv means for a latent: 16 or 32 bit, fp8 and latent records carry over; anything else is asked for."""
    plain = isinstance(both, Format) and (both.number in PLAIN or both.number.startswith("fp8"))
    if isinstance(both, Format) and plain:
        return both
    if isinstance(both, Named) and both.name in ds_mla.RECORDS:
        return both
    also = "; --kv sets only its K and V" if "k" in present else ""
    raise UsageError(
        f"format {both.spelling} does not carry over to the latent of {spec.id}{also}",
        "say what the latent is stored in, for example --latent fp8_e4m3 or --latent bf16",
    )


def _no_effect(role: str, spec: ModelSpec) -> str:
    what = {"k": "K rows", "v": "V rows", "latent": "latent", "index": "index keys"}[role]
    return f"--{role} has no effect: {spec.id} has no {what}."
