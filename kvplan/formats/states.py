"""Recurrent and convolution states: one copy per sequence, never growing with tokens, untouched by a KV format."""

from __future__ import annotations

from kvplan.formats.layout import Field, Layout, Plane


def bind_state(elements: dict[str, tuple[int, str]]) -> Layout:
    """The layout of one state layer on one rank.

    Args:
        elements: name of the tensor (recurrent, conv) to (elements per sequence on this rank, storage).
    """
    planes = tuple(
        Plane(name, (Field(name, "state", storage, count),), "state", per_head=False)
        for name, (count, storage) in elements.items()
        if count
    )
    return Layout(1, (), planes)
