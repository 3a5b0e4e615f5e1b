"""States as an engine stores them: other number types or convolution rows than the mathematics, and spare slots."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import engine_product, some
from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.states import state_elements


def stored_states(
    case: Case, group: CacheGroup, *, more_conv_rows: int = 0, storages: Mapping[str, str] | None = None
) -> Layout:
    """The layout of one layer's states as the engine has them.

    Args:
        more_conv_rows: tokens that the convolution keeps beyond kernel - 1.
        storages: `recurrent` and `conv` to the engine's number type; what is missing stays the model's.

    Raises:
        UnsupportedError: rows of a constant ring, which are no recurrent or convolution state.
    """
    spec = case.spec.group(group.name.removeprefix("mtp-"))
    if spec.kind != "state":
        raise UnsupportedError(
            f"kvplan has no rule for the ring of group {group.name} in this engine", "plan without --engine"
        )
    recurrent, conv = state_elements(spec.state, case.sharding.attention_tp)
    kernel = getattr(spec.state, "conv_kernel", 1)
    if kernel > 1:
        conv += conv // (kernel - 1) * more_conv_rows
    stored = {plane.name: plane.storage for plane in group.layout.planes} | dict(storages or {})
    elements = {"recurrent": recurrent, "conv": conv}
    return bind_state({name: (count, stored[name]) for name, count in elements.items() if count})


def slots_part(
    group: CacheGroup, layout: Layout, sequences: int, spare: int, source: str, why_spare: str = "spare state slots"
) -> Part:
    """One slot of `layout` for each sequence, and `spare` more.

    Where a slot holds more than the mathematics needs, the rest is named padding; where less, it is spared.
    """
    slot = Factor("bytes", layout.fixed_bytes("state"), group.origin.width)
    taken = engine_product("state slots", group, sequences + spare, slot, source=source)
    held_back = engine_product(why_spare, group, spare, slot, source=source)
    saves: list[Product] = []
    padding: list[Product] = []
    needed = {plane.name: plane for plane in group.layout.planes}
    for plane in layout.planes:
        before, now = needed[plane.name].fixed_bytes(1), plane.fixed_bytes(1)
        difference = Factor("bytes", abs(now - before), f"{now:,} stored, {before:,} in the mathematics")
        side, label = (padding, "wider") if now > before else (saves, "narrower")
        side.append(engine_product(f"{label} {plane.name} state", group, sequences, difference, source=source))
    return Part(group.name, some(taken), some(held_back), some(*saves), some(*padding))
