"""Page groups: layers that share a block table, all of one size in bytes, dealt from one pool.

Source: vLLM 0.33.0, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

from kvplan.engines.vllm.blocks import CHUNKED, EVERY_TOKEN, FULL, MAMBA, MLA, SLIDING, SLIDING_MLA, LayerSpec
from kvplan.engines.vllm.buckets import Bucket, Layers, uniform
from kvplan.errors import UnsupportedError, UsageError
from kvplan.units import align_up, cdiv


def promoted(layers: Sequence[Layers]) -> list[Layers]:
    """Windows and chunks kept in full, as without the hybrid manager (_promote_local_kv_cache_specs).

    Raises:
        UsageError: the layers still differ, as with states.
    """
    specs = [m.spec for m in layers]
    if uniform(specs):
        return list(layers)
    sizes = {s.block_size for s in specs if s.kind in EVERY_TOKEN}
    made = []
    for m in layers:
        target = {SLIDING: FULL, CHUNKED: FULL, SLIDING_MLA: MLA}.get(m.spec.kind)
        if target and sizes:
            same = next(iter(sizes)) if len(sizes) == 1 else m.spec.block_size
            made.append(replace(m, spec=_resized(replace(m.spec, kind=target), same)))
        else:
            made.append(m)
    if not uniform([m.spec for m in made]):
        raise UsageError(
            "vLLM cannot lay out this model without the hybrid KV cache manager: its layers keep different rows",
            "leave disable_hybrid_kv_cache_manager off",
        )
    return made


def _resized(spec: LayerSpec, block_size: int) -> LayerSpec:
    if block_size == spec.block_size:
        return spec
    unpadded = spec.layout.page_bytes(cdiv(block_size, spec.law.stride))
    return replace(spec, block_size=block_size, unpadded=unpadded, page_bytes=unpadded)


def unified(layers: Sequence[Layers]) -> list[Layers]:
    """All pages brought to the largest one's bytes (unify_kv_cache_spec_page_size, :346).

    Raises:
        UsageError: an MLA page that neither divides the largest nor may be padded.
    """
    largest = max(m.spec.page_bytes for m in layers)
    return [replace(m, spec=_unified(m.spec, largest)) for m in layers]


def _unified(spec: LayerSpec, largest: int) -> LayerSpec:
    if spec.page_bytes == largest:
        return spec
    if spec.kind != MAMBA and largest % spec.page_bytes == 0:
        larger = _resized(spec, spec.block_size * (largest // spec.page_bytes))
        return replace(larger, page_bytes=largest)
    if spec.kind in (MLA, SLIDING_MLA):
        raise UsageError(
            f"vLLM cannot bring MLA pages of {spec.page_bytes:,} bytes to {largest:,} bytes",
            "choose a block size or cache format whose pages divide",
        )
    return replace(spec, page_bytes=largest)


def page_groups(layers: Sequence[Layers], near_equal: Fraction | None, block_outer: bool = False) -> list[Bucket]:
    """The page groups of a model, in vLLM's order.

    Args:
        layers: of every cache group, in the order of their first layers.
        near_equal: see `versions.Rules`.
        block_outer: the layout keeps all layers of a block together, so pages may differ in size.
    """
    present = [m for m in layers if m.total]
    if not present:
        return []
    if uniform([m.spec for m in present]):
        return [Bucket(tuple(present))]
    if block_outer and len({m.spec.page_bytes for m in present}) > 1:
        return _packed(present)
    try:
        return _equal_groups(unified(present), near_equal)
    except UsageError:
        if {MLA, SLIDING} - {m.spec.kind for m in present}:
            raise
        # MLA beside a window whose page does not fit: the window is kept in full (:819).
        return [Bucket(tuple(promoted(present)))]


def _equal_groups(layers: list[Layers], near_equal: Fraction | None) -> list[Bucket]:
    """Groups of equally many layers, the smaller types padded (:416-556)."""
    buckets: dict[tuple[object, ...], list[Layers]] = {}
    for m in layers:
        s = m.spec
        buckets.setdefault((s.kind, s.block_size, s.page_bytes, s.limit, s.states, s.layout), []).append(m)
    counts = [sum(m.total for m in members) for members in buckets.values()]
    size = group_size(counts, near_equal)
    return [Bucket(tuple(members), cdiv(count, size)) for members, count in zip(buckets.values(), counts, strict=True)]


def group_size(counts: Sequence[int], near_equal: Fraction | None) -> int:
    """Layers of a page group: of the rarest type, or of the commonest where the counts are near equal."""
    fewest, most = min(counts), max(counts)
    return most if near_equal is not None and most < fewest * near_equal else fewest


def _packed(layers: list[Layers]) -> list[Bucket]:
    """Groups whose pages lie side by side in a block (_get_packed_kv_cache_groups, :914).

    Raises:
        UnsupportedError: states among pages of several sizes.
    """
    if any(m.spec.kind == MAMBA for m in layers):
        raise UnsupportedError(
            "kvplan has no rule for states beside pages of several sizes in a block-outermost layout of vLLM",
            "leave kv_cache_layout out",
        )
    kinds: list[list[Layers]] = []
    for m in layers:
        for members in kinds:
            if uniform([m.spec, *(other.spec for other in members)]):
                members.append(m)
                break
        else:
            kinds.append([m])
    lanes = [_lane_counts(members) for members in kinds]
    balanced = [len(set(counts)) == 1 for counts in lanes]
    floor = max((c[0] for c, same in zip(lanes, balanced, strict=True) if same and len(c) > 1), default=0)
    repeats = _least_padding([c[0] for c, same in zip(lanes, balanced, strict=True) if same], floor) if floor else 0
    return [
        Bucket(tuple(members), cdiv(max(counts), repeats) if same and repeats else 1)
        for members, counts, same in zip(kinds, lanes, balanced, strict=True)
    ]


def _lane_counts(members: list[Layers]) -> list[int]:
    return [sum(m.total for m in lane) for lane in Bucket(tuple(members)).lanes]


def _least_padding(counts: list[int], lowest: int) -> int:
    """The group size from `lowest` on that pads least; of several the largest (_approximate_gcd)."""
    sizes = range(max(1, lowest), max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


def bytes_per_block(buckets: Sequence[Bucket], stage: int, block_outer: bool = False) -> int:
    """Bytes of a block on one stage: of its largest page group (:574-605).

    Layers apart are each strided by their alignment, layers of a block together by the least common one.
    """
    strided = [
        Bucket(
            tuple(replace(m, spec=replace(m.spec, page_bytes=align_up(m.spec.page_bytes, m.spec.alignment)))
                  for m in b.members),
            b.groups,
        )
        for b in buckets
    ]  # fmt: skip
    widest = max((size for b in (buckets if block_outer else strided) for size in b.group_bytes(stage)), default=0)
    alignments = [m.spec.alignment for b in buckets for m in b.members]
    return align_up(widest, lcm(*alignments)) if block_outer else widest
