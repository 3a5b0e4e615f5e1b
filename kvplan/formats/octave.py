"""OCTAVE slots as vLLM stores them on ROCm: K and V of one (token, head) in one record.

The rope channels of K have 4 bits, its others 3; V has 4 or 3. Every 64 channels of K share an fp16 scale, V has one.
The compact form has 3 bits everywhere and one scale for K. Slots are rounded up to 8 bytes, compact ones to 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.errors import UsageError
from kvplan.formats.grid import Tensor, row_bytes
from kvplan.formats.layout import BoundTensor, Field, Layout, Plane, code_fields

BLOCK = 64
"""Channels of K that share a scale."""
SLOTS = {"octave_k3v4": ("int4", 8, BLOCK), "octave_k3v3": ("int3", 8, BLOCK), "octave_k3v3_compact": ("int3", 4, 0)}
"""Name to the number of V, the bytes that a slot is rounded up to, and channels per scale of K (0: all)."""


def bind_octave(tensors: Sequence[Tensor], heads: int) -> Layout:
    """The layout of K and V in joint slots; rope channels are all of K unless the tensor says how many.

    Raises:
        UsageError: the name is not given for both K and V, or their heads are no multiple of 64 channels.
    """
    name = next(t.format.spelling for t in tensors if t.format.spelling in SLOTS)
    if [t.role for t in tensors] != ["k", "v"] or any(t.format.spelling != name for t in tensors):
        raise UsageError(f"format {name} stores K and V in one slot; it cannot hold one of them alone", f"--kv {name}")
    k, v = tensors
    if k.dim % BLOCK or v.dim % BLOCK:
        raise UsageError(
            f"format {name}: head_dim {k.dim} is no multiple of its {BLOCK}-channel blocks", "use fp8_e4m3, for example"
        )
    number, align, block = SLOTS[name]
    rope = (k.rope_dim or k.dim) if block else 0
    fields = [Field("k", "rope", "int4", rope)] if rope else []
    fields += [Field("k", part, storage, k.dim - rope) for part, storage in code_fields("int3") if k.dim > rope]
    fields += [Field("v", part, storage, v.dim) for part, storage in code_fields(number)]
    fields += [Field("k", "scale", "fp16", k.dim // block if block else 1, role="metadata")]
    fields += [Field("v", "scale", "fp16", 1, role="metadata")]
    bound = tuple(
        BoundTensor(t.role, name, t.dim, n, "group" if g else "token", g, scale="fp16", pack="slot", rot=True)
        for t, n, g in ((k, "int3", block), (v, number, 0))
    )
    return Layout(heads, bound, (Plane("kv_slots", tuple(fields), "page", pack="slot", slot_align=align),))


# Bytes of one slot at head_dim 128 with rotary over all channels: codes of K and of V, and 2 + 1 or 1 + 1 scales.
assert row_bytes("octave_k3v4") == 64 + 64 + 2 * 3 + 2
assert row_bytes("octave_k3v3") == 64 + 48 + 2 * 3 + 2
assert row_bytes("octave_k3v3_compact") == 48 + 48 + 2 * 2
