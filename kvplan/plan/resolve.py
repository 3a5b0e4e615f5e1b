"""From a request to everything a plan is computed from: spec, device, formats, cache groups, all defaults."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from kvplan.errors import UsageError, did_you_mean
from kvplan.formats.grammar import PLAIN, Format, Named, Pair, parse_any, parse_kv
from kvplan.memory.figures import check_page_size, default_page_size
from kvplan.memory.groups import DTYPES, CacheFormats, CacheGroup, cache_groups, roles, tp_obstacle
from kvplan.plan.types import PlanRequest
from kvplan.units import check_count

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

PUBLISHED = "published"
"""`weights_dtype` for the byte count that the spec itself states."""
LATENT_RECORDS = ("fp8_ds_mla", "fp8_ds_v4", "nvfp4_ds_mla")
_ROLES = ("k", "v", "latent", "index")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with all that it names.

    Attributes:
        request: the echo: defaults filled in, formats in canonical spelling.
        formats: the cache configuration.
        groups: the cache of one rank; `unsharded` the same at tp=1.
        notes: what the user should know about options that have no effect.
    """

    request: PlanRequest
    spec: ModelSpec
    device: DeviceSpec | None
    formats: CacheFormats
    groups: tuple[CacheGroup, ...]
    unsharded: tuple[CacheGroup, ...]
    page_size: int
    notes: tuple[str, ...]


def resolve(request: PlanRequest, spec: ModelSpec | None = None, device: DeviceSpec | None = None) -> Resolved:
    """Check a request and fill it in.

    Args:
        spec: the model, if the caller has read it already; otherwise `request.model` is looked up.
        device: likewise for `request.gpu`.

    Raises:
        UsageError: an impossible or contradictory value.
        InputError: a spec that cannot be found or read.
    """
    check_count(request.batch, "batch")
    check_count(request.tp, "tp")
    if not 0 < request.util <= 1:
        raise UsageError(
            f"util {request.util} is not a share of memory", "give a number above 0 and up to 1, such as 0.9"
        )
    formats, notes = _choose(request, spec := spec or _load_spec(request))
    _check_context(request, spec)
    _check_tp(spec, request.tp)
    device = device or _load_device(request)
    groups = cache_groups(spec, formats, request.tp)
    unsharded = groups if request.tp == 1 else cache_groups(spec, formats)
    if request.page_size is None:
        page_size = default_page_size(groups)
    else:
        page_size = check_page_size(groups, check_count(request.page_size, "page size"))
    present = roles(spec)
    echo = {role: getattr(formats, role).spelling if role in present else None for role in _ROLES}
    echo["kv"] = parse_kv(request.kv).spelling if request.kv else None
    update = {**echo, "page_size": page_size, "weights_dtype": weights_dtype(request, spec)}
    return Resolved(request.model_copy(update=update), spec, device, formats, groups, unsharded, page_size, notes)


def _load_spec(request: PlanRequest) -> ModelSpec:
    from kvplan.specs.load import load_model

    return load_model(request.model)


def _load_device(request: PlanRequest) -> DeviceSpec | None:
    memory, bandwidth = request.gpu_memory, request.bandwidth
    if request.gpu and (memory or bandwidth):
        raise UsageError("a GPU name and a GPU memory or bandwidth are both given", "give --gpu, or the two figures")
    if request.gpu:
        from kvplan.specs.load import load_device

        return load_device(request.gpu)
    if memory is None and bandwidth is None:
        return None
    if memory is None or bandwidth is None:
        raise UsageError(
            "a GPU without a name needs its memory and its bandwidth",
            "for example --gpu-memory 24GiB --bandwidth 936GB/s",
        )
    from kvplan.specs.device import adhoc_device

    return adhoc_device(memory, bandwidth)


def _check_context(request: PlanRequest, spec: ModelSpec) -> None:
    if request.context is None:
        return
    check_count(request.context, "context")
    if request.context > spec.max_context and not request.beyond_max:
        raise UsageError(
            f"context {request.context:,} is above the maximum of {spec.id}, {spec.max_context:,}",
            f"use --context {spec.max_context}, or add --beyond-max",
        )


def legal_tps(spec: ModelSpec) -> tuple[int, ...]:
    """Tensor-parallel sizes that fit: query heads divide, KV heads split or copy evenly, state heads divide."""
    heads = [g.q_heads for g in spec.layer_groups if g.kind in ("attention", "latent", "cross") and g.q_heads]
    ceiling = gcd(*heads) if heads else 256
    fits = (n for n in range(1, ceiling + 1) if not any(h % n for h in heads))
    return tuple(n for n in fits if not any(tp_obstacle(g, n) for g in spec.layer_groups))


def _check_tp(spec: ModelSpec, tp: int) -> None:
    legal = legal_tps(spec) if tp > 1 else (1,)
    if tp in legal:
        return
    for group in spec.layer_groups:
        heads = group.q_heads if group.kind in ("attention", "latent", "cross") else None
        why = f"{heads} query heads do not divide by {tp}" if heads and heads % tp else tp_obstacle(group, tp)
        if why:
            raise UsageError(f"tp {tp} does not fit {spec.id}: {why}", "legal values: " + ", ".join(map(str, legal)))
    raise UsageError(f"tp {tp} does not fit {spec.id}", "legal values: " + ", ".join(map(str, legal)))


def weights_dtype(request: PlanRequest, spec: ModelSpec) -> str:
    """The number type of the weights: as asked, else the spec's published bytes, else the native dtype."""
    asked = request.weights_dtype
    if asked is None:
        return PUBLISHED if spec.weights else DTYPES[spec.native_dtype]
    if asked == PUBLISHED and spec.weights is None:
        raise UsageError(f"{spec.id} states no published weight bytes", "give a number type such as bf16")
    return asked


def _choose(request: PlanRequest, spec: ModelSpec) -> tuple[CacheFormats, tuple[str, ...]]:
    """The cache configuration, and notes on options without effect."""
    present = roles(spec)
    native = Format(DTYPES[spec.native_dtype])
    both = parse_kv(request.kv) if request.kv else None
    chosen: dict[str, Format | Named] = {}
    for role in _ROLES:
        given = getattr(request, role)
        chosen[role] = parse_any(given) if given else native
    if both is not None:
        for role, one in (("k", _side(both, "k")), ("v", _side(both, "v"))):
            if getattr(request, role) and chosen[role] != one:
                raise UsageError(f"--kv {request.kv} and --{role} {getattr(request, role)} contradict", _KV_HINT)
            chosen[role] = one
        if "latent" in present and not request.latent:
            chosen["latent"] = _for_latent(both, spec, present)
    notes = [_no_effect(role, spec) for role in _ROLES if getattr(request, role) and role not in present]
    if both is not None and not present & {"k", "v", "latent"}:
        notes.append(f"A KV format has no effect: {spec.id} keeps only states, one copy per sequence.")
    recurrent, conv = (_state_dtype(name, getattr(request, name)) for name in ("state_dtype", "conv_dtype"))
    if (recurrent or conv) and not any(group.kind == "state" for group in spec.layer_groups):
        notes.append(f"--state-dtype and --conv-dtype have no effect: {spec.id} has no states.")
    return CacheFormats(**chosen, recurrent=recurrent, conv=conv), tuple(notes)


def _state_dtype(name: str, given: str | None) -> str | None:
    if given is not None and given not in PLAIN:
        option = name.replace("_", "-")
        raise UsageError(f"unknown {option} {given!r}", did_you_mean(given, PLAIN))
    return given


_KV_HINT = "give --kv for both, or --k and --v"


def _side(both: Format | Named | Pair, role: str) -> Format | Named:
    if isinstance(both, Pair):
        return both.k if role == "k" else both.v
    return both


def _for_latent(both: Format | Named | Pair, spec: ModelSpec, present: frozenset[str]) -> Format | Named:
    """What --kv means for a latent: 16 or 32 bit, fp8 and latent records carry over; anything else is asked for."""
    plain = isinstance(both, Format) and (both.number in PLAIN or both.number.startswith("fp8"))
    if isinstance(both, Format) and plain:
        return both
    if isinstance(both, Named) and both.name in LATENT_RECORDS:
        return both
    also = "; --kv sets only its K and V" if "k" in present else ""
    raise UsageError(
        f"format {both.spelling} does not carry over to the latent of {spec.id}{also}",
        "say what the latent is stored in, for example --latent fp8_e4m3 or --latent bf16",
    )


def _no_effect(role: str, spec: ModelSpec) -> str:
    what = {"k": "K rows", "v": "V rows", "latent": "latent", "index": "index keys"}[role]
    return f"--{role} has no effect: {spec.id} has no {what}."
