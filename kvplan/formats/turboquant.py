"""TurboQuant slots as vLLM stores them: K and V of one (token, head) in one record of an even number of bytes.

K is fp8 without a scale, or a rotated Lloyd-Max code with the fp16 norm of the row; V is an integer with fp16 scale and
zero per row. One format for both tensors: neither can be chosen alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.errors import UsageError
from kvplan.formats.grid import Tensor, row_bytes
from kvplan.formats.layout import BoundTensor, Field, Layout, Plane, check_fill, code_fields

SLOTS = {
    "turboquant_k8v4": ("fp8_e4m3", "int4"),
    "turboquant_4bit_nc": ("lm4", "int4"),
    "turboquant_k3v4_nc": ("lm3", "int4"),
    "turboquant_3bit_nc": ("lm3", "int3"),
}
"""Name to the numbers of K and V."""


def bind_joint(tensors: Sequence[Tensor], heads: int) -> Layout:
    """The layout of K and V in joint slots.

    Raises:
        UsageError: the name is not given for both K and V, or their rows do not fill whole bytes.
    """
    name = next(t.format.spelling for t in tensors if t.format.spelling in SLOTS)
    if [t.role for t in tensors] != ["k", "v"]:
        raise UsageError(f"format {name} is a slot of K and V, not of {tensors[0].role}", "use fp8_e4m3, for example")
    if any(t.format.spelling != name for t in tensors):
        raise UsageError(f"format {name} stores K and V in one slot; it cannot hold one of them alone", f"--kv {name}")
    fields: list[Field] = []
    bound: list[BoundTensor] = []
    for t, number in zip(tensors, SLOTS[name], strict=True):
        check_fill(f"format {name}", number, t.dim, f"head_dim {t.dim}")
        stored = ("scale", "zero") if t.role == "v" else ("scale",) if number.startswith("lm") else ()
        fields += [Field(t.role, part, storage, t.dim) for part, storage in code_fields(number)]
        fields += [Field(t.role, part, "fp16", 1, role="metadata") for part in stored]
        bound.append(
            BoundTensor(
                t.role,
                name,
                t.dim,
                number,
                "token" if stored else "",
                asym=t.role == "v",
                scale="fp16" if stored else "",
                pack="slot",
                rot=number.startswith("lm"),
            )
        )
    return Layout(heads, tuple(bound), (Plane("kv_slots", tuple(fields), "page", pack="slot", slot_align=2),))


# Bytes of one slot at head_dim 128: codes of K and of V, 2 bytes of norm for K, 4 of scale and zero for V.
assert row_bytes("turboquant_k8v4") == 128 + 64 + 4
assert row_bytes("turboquant_4bit_nc") == 64 + 2 + 64 + 4
assert row_bytes("turboquant_k3v4_nc") == 48 + 2 + 64 + 4
assert row_bytes("turboquant_3bit_nc") == 48 + 2 + 48 + 4
