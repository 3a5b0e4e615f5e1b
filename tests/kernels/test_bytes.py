"""The ladder of proof: bytes computed = bytes allocated = bytes written."""

from __future__ import annotations

import pytest
import torch
from kvplan_kernels.cache import Cache, allocate, make_planes
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import DEVICE, WITH_KERNEL, guard_pages, layout_of, written_bytes

PAGE = 48


@pytest.mark.parametrize("spelling", [*WITH_KERNEL, "int2", "int2:token,asym"])
def test_allocated_bytes_are_the_declared_bytes(spelling: str) -> None:
    for dims in ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256), (576, 512)):
        for heads in range(1, 9):
            group = int(spelling.split("group/")[1].split(",")[0]) if "group" in spelling else 1
            if dims[0] % group or dims[1] % group:
                continue
            layout = layout_of(spelling, dims=dims, heads=heads)
            planes = make_planes(layout, 7, 3, PAGE, "meta")
            allocated = sum(t.untyped_storage().nbytes() for t in planes.values())
            declared = 7 * layout.page_bytes(PAGE) + 3 * layout.fixed_bytes("residual") + layout.fixed_bytes("layer")
            assert allocated == declared > 0, (dims, heads)


def write_whole(cache: Cache, writer: object) -> None:
    """Whole pages in pieces, with static scales; no row is special, so every byte of every field is meant to change."""
    total = cache.page_table.shape[1] * cache.page_size
    generator = torch.Generator().manual_seed(3)
    dims = [cache.layout.tensor(role).dim for role in ("k", "v")]
    k, v = (torch.randn(cache.num_sequences, total, cache.layout.heads, d, generator=generator) for d in dims)
    k, v = k.half().to(DEVICE), v.half().to(DEVICE)
    calibrate_cache(cache, k, v)
    for rows in (slice(0, 7), slice(7, total)):
        writer(cache, k[:, rows], v[:, rows])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spelling", "writer"),
    [(s, writer) for s in WITH_KERNEL for writer in (append, write_reference)],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_written_bytes_are_the_declared_bytes(spelling: str, writer: object) -> None:
    layout = layout_of(spelling, dims=(96, 64) if "group/32" in spelling else (96, 80))
    shuffle = torch.Generator().manual_seed(5)
    cache = allocate(
        layout, num_sequences=2, max_tokens=PAGE, page_size=PAGE, device=DEVICE, num_pages=5, shuffle=shuffle
    )
    assert len(guard_pages(cache)) == 3
    written = written_bytes(cache, lambda c: write_whole(c, writer))
    owned = cache.page_table.long()
    for plane in layout.planes:
        touched = written[plane.name]
        if plane.scope != "page":
            assert touched.all(), plane.name
            continue
        assert not touched[guard_pages(cache)].any(), plane.name
        slots = touched[owned].movedim(3, 2).flatten(1, 2)  # (sequence, slot, head, bytes)
        at = 0
        for field in plane.fields:
            width = field.unit_bytes
            used = layout.tensor(field.tensor).split(PAGE)[0] // field.tokens
            assert slots[:, :used, :, at : at + width].all(), (plane.name, field)
            assert not slots[:, used:, :, at : at + width].any(), (plane.name, field)
            at += width
        assert at == plane.slot_bytes == touched.shape[-1]


def test_the_door_names_a_plane_that_is_not_as_declared() -> None:
    cache = allocate(layout_of("int8"), num_sequences=1, max_tokens=16, page_size=16, device=DEVICE)
    k = torch.zeros(1, 1, 2, 64, dtype=torch.float16, device=DEVICE)
    cache.planes["k_codes"] = cache.planes["k_codes"].transpose(0, 1)
    with pytest.raises(ValueError, match="plane k_codes"):
        append(cache, k, k)
