"""Which kind a layer group or a cache is."""

from __future__ import annotations

from kvplan.formats.layout import Layout
from kvplan.validate.kinds.attention import ATTENTION
from kvplan.validate.kinds.base import Group, Kind
from kvplan.validate.kinds.latent import LATENT

KINDS: dict[str, Kind] = {"attention": ATTENTION, "latent": LATENT}
"""Kind of a layer group in a spec -> what validates it."""


def kind_of(group: Group) -> Kind:
    """Of a layer group."""
    return KINDS[group.kind]


def kind_in(layout: Layout) -> Kind:
    """Of what a layout stores."""
    stored = {tensor.role for tensor in layout.tensors}
    return next(kind for kind in KINDS.values() if kind.valued in stored)
