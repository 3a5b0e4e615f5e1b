"""Formats of single layers: `[ROLE@]LAYERS:FORMAT`, LAYERS a list of first=N, last=N, I and I-J.

Rules are read in order and the last one that names a layer wins; all of them win over --kv, --k, --v and the rest.
Without a role a rule sets what --kv sets: K, V, and a latent if the format carries over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvplan.errors import UsageError
from kvplan.formats.grammar import Format, Named, parse_any, parse_kv
from kvplan.memory.groups import TENSORS, LayerRule, roles
from kvplan.memory.sharding import spell_layers
from kvplan.plan.choose import ROLES, for_latent, side

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

_HINT = "for example first=2:bf16, last=2:bf16, 0-1,30-31:bf16 or k@0:bf16"
_ITEM = re.compile(r"(first|last)=(\d{1,5})|(\d{1,5})(?:-(\d{1,5}))?")


def layer_rules(texts: tuple[str, ...], spec: ModelSpec) -> tuple[tuple[LayerRule, ...], tuple[str, ...]]:
    """The rules of a request, and notes on layers without the cache that a rule names.

    Raises:
        UsageError: a rule outside the grammar, or a layer that the model does not have.
    """
    rules = tuple(_parse(text, spec) for text in texts)
    return rules, tuple(note for rule in rules if (note := _without_cache(rule, spec)))


def _parse(text: str, spec: ModelSpec) -> LayerRule:
    clean = "".join(text.lower().split())
    where, colon, spelled = clean.partition(":")
    role, at, listed = where.rpartition("@")
    if not colon or (at and role not in ROLES):
        raise UsageError(f"layer rule {text!r} is not [ROLE@]LAYERS:FORMAT", _HINT)
    layers = frozenset(i for item in listed.split(",") for i in _layers(text, item, spec.layers))
    present = roles(spec)
    formats: dict[str, Format | Named]
    if role:
        one = parse_any(spelled)
        return LayerRule(f"{where}:{one.spelling}", layers, ((role, one),))
    both = parse_kv(spelled)
    formats = {r: side(both, r) for r in ("k", "v")}
    if "latent" in present:
        formats["latent"] = for_latent(both, spec, present)
    return LayerRule(f"{where}:{both.spelling}", layers, tuple(formats.items()))


def _layers(text: str, item: str, count: int) -> range:
    match = _ITEM.fullmatch(item)
    if not match:
        raise UsageError(f"layer rule {text!r}: {item!r} names no layers", _HINT)
    word, number, first, last = match.groups()
    if word:
        many = int(number)
        if not 1 <= many <= count:
            raise UsageError(f"layer rule {text!r}: the model has {count} layers", f"use {word}=1 to {word}={count}")
        return range(many) if word == "first" else range(count - many, count)
    start, stop = int(first), int(last or first)
    if start > stop or stop >= count:
        raise UsageError(
            f"layer rule {text!r}: {item!r} is not a range of the model's layers", f"layers are 0 to {count - 1}"
        )
    return range(start, stop + 1)


def _without_cache(rule: LayerRule, spec: ModelSpec) -> str:
    """A note on the layers of a rule that have none of the tensors it names."""
    named = {role for role, _ in rule.formats}
    covered: set[int] = set()
    for group in spec.layer_groups:
        fixed = getattr(group, "dtype", None) is not None
        if not fixed and named & set(TENSORS.get(getattr(group, "role", group.kind), ())):
            covered |= set(spec.positions(group))
    missing = tuple(sorted(rule.layers - covered))
    if not missing:
        return ""
    every = "has no effect" if len(missing) == len(rule.layers) else f"has no effect on layers {spell_layers(missing)}"
    return f"--layers {rule.spelling} {every}: no {' or '.join(sorted(named))} rows of their own there."
