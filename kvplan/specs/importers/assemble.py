"""From the caches of each layer to the layer groups of a spec, with an origin for every number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvplan.specs.importers.family import Family, Part, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import Figure, plain
from kvplan.specs.importers.result import How, Origin

MAX_PERIOD = 16
"""Longest repeating pattern of layers that is written as one."""


@dataclass
class Group:
    """A layer group in the making."""

    name: str
    body: dict[str, Any]
    overlay: bool
    placed: tuple[How, str] | None = None
    layers: list[int] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)


def layer_groups(cfg: Fields, family: Family, words: Words) -> list[Group]:
    """Layers with equal caches together, in the order in which they first appear; overlays after the owners."""
    shared = family.sharing(cfg, words.words) if family.sharing else {}
    # Not has(): a field that only is there is not yet used.
    stated = cfg.data.get(family.shared_by) is not None
    placed: tuple[How, str] = ("read" if stated else "defaulted", cfg.prefix + family.shared_by)
    found: dict[tuple[str, bool, str], Group] = {}
    for layer, word in enumerate(words.words):
        parts = family.makers[word](cfg.layer(layer), layer)
        if layer in shared:
            parts = (Part("shared", {"kind": "none"}, shared[layer], placed), *parts[1:])
        for place, part in enumerate(parts):
            key = (part.name, place > 0, json.dumps(plain(part.body), sort_keys=True))
            group = found.setdefault(key, Group(part.name, part.body, place > 0, part.placed))
            group.layers.append(layer)
            group.reads.update(part.reads)
    groups = sorted(found.values(), key=lambda g: g.overlay)
    _name_apart(groups)
    return groups


def _name_apart(groups: list[Group]) -> None:
    taken: dict[str, int] = {}
    for group in groups:
        taken[group.name] = count = taken.get(group.name, 0) + 1
        if count > 1:
            group.name = f"{group.name}-{count}"


def written(groups: list[Group], layers: int) -> list[dict[str, Any]]:
    """The groups as a spec file has them; numbers still know their origin."""
    owners = [g for g in groups if not g.overlay]
    made = []
    for group in groups:
        alone = len(owners) == 1 or group.overlay
        body: dict[str, Any] = {"name": group.name, "kind": group.body["kind"]}
        body["layers"] = placement(group.layers, layers, whole=alone)
        body.update({key: value for key, value in group.body.items() if key != "kind"})
        if group.reads:
            body["reads"] = [g.name for g in owners if set(g.layers) & group.reads]
        if group.overlay:
            body["overlay"] = True
        made.append(body)
    _take_the_rest(made)
    return made


def _take_the_rest(made: list[dict[str, Any]]) -> None:
    """One owner may be written as every layer that no other names: the one with the longest list."""
    listed = [body for body in made if isinstance(body["layers"], list) and "overlay" not in body]
    longest = max(listed, key=lambda body: len(body["layers"]), default=None)
    if longest and len(longest["layers"]) > MAX_PERIOD // 2:
        longest["layers"] = "rest"


def placement(indices: list[int], layers: int, *, whole: bool) -> Any:
    """A count, a repeating pattern or a list: the shortest that says the same."""
    if whole and len(indices) == layers:
        return layers
    inside = set(indices)
    for period in range(2, min(MAX_PERIOD, layers // 2) + 1):
        at = [i for i in range(period) if i in inside]
        if at and inside == {i for i in range(layers) if i % period in at}:
            return {"every": period, "at": at}
    return list(indices)


def origins(groups: list[Group], words: Words, layers: int) -> Iterator[Origin]:
    """One for each number of each group, and one for which layers it has."""
    for group in groups:
        at = f"layer_groups.{group.name}"
        how, source = group.placed or (words.how, words.source)
        yield Origin(f"{at}.layers", f"{len(group.layers)} of {layers}", how, source)
        yield from _numbers(at, group.body)


def _numbers(at: str, value: Any) -> Iterator[Origin]:
    if isinstance(value, Figure):
        yield Origin(at, str(int(value)), value.how, value.source)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(f"{at}.{key}", item)


def prediction_groups(groups: list[Group]) -> list[str]:
    """What a prediction layer keeps: the cache of the last layer that keeps rows for every token, else of the last.

    Index keys come with it, also where only some layers keep them: a prediction layer has no earlier layer to share.
    """
    owners = [g for g in groups if not g.overlay and g.body["kind"] in ("attention", "latent")]
    growing = [g for g in owners if "retain" not in g.body] or owners
    if not growing:
        return []
    owner = max(growing, key=lambda g: g.layers[-1])
    keys = [g for g in groups if g.overlay and g.body.get("role") == "index" and set(g.layers) & set(owner.layers)]
    # Compressed keys and open groups are those of a layer's compressor, which prediction layers do not have.
    return [owner.name, *(g.name for g in keys if "stride" not in g.body and "retain" not in g.body)]
