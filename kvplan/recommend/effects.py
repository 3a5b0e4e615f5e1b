"""Honest effects: what a ratio of bits does not show, for this model, context, engine and layout."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.formats.grammar import PLAIN, Named, parse_any
from kvplan.memory.figures import KvFigures
from kvplan.plan import figures_at
from kvplan.recommend.engine_facts import own_latent, published
from kvplan.recommend.evidence import MEASURED, has_k_bias, k_sensitive
from kvplan.recommend.scored import Scored
from kvplan.units import format_bytes

SHORT = 2048
"""Tokens up to which a residual of 128 rows is worth a word."""
LONG = 8192
"""Tokens from which on evidence of 2,048 flatters a residual."""
MOST = 0.9
"""A gain below this share of what the rows alone would give is explained."""


def effects(shown: Scored, native: Scored | None, choices: list[Scored]) -> Iterator[str]:
    """Sentences about the choice that is shown.

    Args:
        native: the unquantised cache in the same layout; None where it could not be planned.
        choices: everything computed, for what other layouts hold.
    """
    yield from _full_card(shown)
    yield from _keys(shown)
    yield from _copies(shown, choices)
    quantised = shown if _quantised(shown) else _most_like_fp8(choices, shown)
    if native is not None and quantised is not None:
        yield from _gain(quantised, native)
        yield from _latency(quantised, native)
        residual = _most_residual(choices, shown)
        if residual is not None and residual is not quantised:
            yield from _gain(residual, native)
    yield from own_latent(shown.resolved)
    yield from _window(shown)
    yield from _hardware(shown)
    if shown.resolved.engine and quantised is not None:
        yield from published(quantised.resolved)


def _quantised(c: Scored) -> bool:
    return any(f and f not in PLAIN for f in c.formats)


def _most_like_fp8(choices: list[Scored], shown: Scored) -> Scored | None:
    """Where 16 bit is chosen: the 8-bit choice in the same layout, to say what it would have given."""
    eight = [
        c for c in choices
        if _quantised(c) and c.resolved.sharding == shown.resolved.sharding and not c.resolved.request.layers
        and all(f is None or "fp8" in f or f.startswith(("int8", "q8")) for f in c.formats)
    ]  # fmt: skip
    return min(eight, key=lambda c: c.held_bytes, default=None)


def _most_residual(choices: list[Scored], shown: Scored) -> Scored | None:
    """At a short context: a choice that keeps the last 128 rows unquantised, to say what is left of its gain."""
    context = shown.resolved.request.context
    if context is None or context > SHORT:
        return None
    kept = [c for c in choices if c.resolved.sharding == shown.resolved.sharding and not c.resolved.request.layers]
    return next((c for c in kept if all(f and f.endswith("recent=128") for f in c.formats[:2])), None)


def _figures(c: Scored) -> KvFigures:
    context = c.resolved.request.context
    assert context is not None
    return figures_at(c.resolved, context)


def _gain(c: Scored, native: Scored) -> Iterator[str]:
    """Where the whole gains less than its rows: states, windows, a residual, an engine's padding."""
    after, before = _figures(c), _figures(native)
    if not c.held_bytes or not after.payload_bytes:
        return
    # The slope is of rows alone; a model of windows only has none.
    slopes = before.bytes_per_token.value, after.bytes_per_token.value
    rows = slopes[0] / slopes[1] if slopes[1] else before.payload_bytes / (after.payload_bytes + after.metadata_bytes)
    whole = native.held_bytes / c.held_bytes
    if whole >= MOST * rows:
        return
    why = []
    held = after.allocated_bytes
    if after.state_bytes > held / 20:
        why.append(f"{after.state_bytes / held:.0%} of it is state that no KV format changes")
    residual = after.residual_bytes + after.reserved_bytes
    if residual > held / 20 and after.residual_bytes:
        why.append(f"{residual / held:.0%} of it is the unquantised residual of each request")
    elif after.reserved_bytes > held / 20:
        why.append(f"{after.reserved_bytes / held:.0%} of it is reserved by the engine's windows, copies and slots")
    if after.padding_bytes > held / 20:
        why.append(f"{after.padding_bytes / held:.0%} of it is padding of the engine's pages or unfilled rows")
    if c.resolved.request.layers:
        why.append(f"layers {'; '.join(c.resolved.request.layers)} stay as they are")
    text = "; ".join(why) or "layers and index keys beside them keep their size"
    yield f"{_name(c)}: rows shrink {rows:.2f}x, the cache only {whole:.2f}x at this context: {text}"


def _window(c: Scored) -> Iterator[str]:
    """A residual flatters a short text, and the evidence is of one."""
    context = c.resolved.request.context or 0
    kept = any("recent=" in f for f in c.formats if f)
    if kept and context >= LONG and c.quality and c.quality.evidence != MEASURED:
        yield (
            "the loss of a format with a residual is known from 2,048 tokens, of which the newest rows are a larger "
            f"share than of {context:,}: it may be larger here"
        )


def _latency(c: Scored, native: Scored) -> Iterator[str]:
    if not c.seconds or not native.seconds:
        return
    faster, smaller = native.seconds / c.seconds, native.held_bytes / c.held_bytes
    if smaller > 1.1 and faster < 0.8 * smaller:
        yield (
            f"{_name(c)}: {smaller:.2f}x fewer bytes, decode attention only {faster:.2f}x as fast as predicted: the "
            "fixed time of a launch and the work of unpacking do not shrink with the bytes"
        )


def _full_card(c: Scored) -> Iterator[str]:
    usable = c.pool_bytes
    device = c.resolved.device
    assert device is not None
    if usable <= 0:
        yield f"the weights alone fill each GPU ({format_bytes(device.memory_bytes)}): no cache format helps"
    elif usable < device.memory_bytes / 10:
        yield (
            f"the weights leave {format_bytes(usable)} of {format_bytes(device.memory_bytes)} for the cache: smaller "
            "weights or one more GPU give more room than any cache format"
        )


def _keys(c: Scored) -> Iterator[str]:
    spec = c.resolved.spec
    if k_sensitive(spec):
        yield (
            f"{spec.id} has a bias on its keys, of a family in which fp8 and low-bit K broke the model: keep K in 16 "
            "bit or in int8 with groups of 32 channels (q8_0) and put the savings on V, or measure (kvplan quality)"
        )
    elif has_k_bias(spec):
        yield f"{spec.id} has a bias on its keys, and no evidence here is of such a model: measure K (kvplan quality)"


def _copies(c: Scored, choices: list[Scored]) -> Iterator[str]:
    """TP beyond the KV heads, or a latent on every rank: what the copies take, and the layout without them."""
    same = [o for o in choices if o.choice == c.choice]
    plain = [o for o in same if o.resolved.sharding.dcp == 1 and not o.resolved.sharding.dp_attention]
    widest = max(plain, key=lambda o: o.resolved.sharding.tp, default=None)
    if widest is None or not (copies := _figures(widest).replicated_bytes):
        return
    tp, best = widest.resolved.sharding.tp, max(same, key=lambda o: o.requests)
    text = f"tp {tp} alone holds {format_bytes(copies)} of copies over its ranks"
    if best.requests > widest.requests:
        s = best.resolved.sharding
        how = f"tp {s.tp}, dp {s.dp}{' inside it' if s.dp_attention else ''}, dcp {s.dcp}"
        yield f"{text} and {widest.requests:,} requests; {how} holds {best.requests:,}"
    else:
        yield f"{text}; no other layout of these GPUs holds more requests"


def _hardware(c: Scored) -> Iterator[str]:
    device = c.resolved.device
    assert device is not None
    found = [parse_any(f) for f in c.formats if f]
    floats = {f.number for f in found if not isinstance(f, Named) and f.number.startswith("fp8")}
    if floats and device.hardware_formats and not floats <= set(device.hardware_formats):
        yield f"{device.name} has no hardware conversion for {', '.join(sorted(floats))}: bytes shrink, speed need not"
    if any(not isinstance(f, Named) and f.is_static for f in found):
        yield "static scales must be calibrated (kvplan calibrate); an engine without takes 1.0; values beyond clip"


def _name(c: Scored) -> str:
    chosen = c.resolved.engine
    parts = list(chosen.formats.values()) if chosen else [f for f in c.formats if f]
    return " / ".join(dict.fromkeys(parts))
