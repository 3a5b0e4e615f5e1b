"""Records of MLA latents as DeepSeek's serving kernels store them: the nope part quantised, the rope part wider.

| name | row | bytes |
|---|---|---|
| `fp8_ds_mla` | 512 fp8, 4 fp32 scales, 64 bf16 | 656 |
| `fp8_ds_v4` | 448 fp8, 7 e8m0 scales and one unused byte, 64 bf16; a page is rounded up to 576 bytes | 584 |
| `nvfp4_ds_mla` | 512 fp4, 32 e4m3 scales, 64 fp8 | 352 |

The kernels accept these widths only; for others the grammar says the same, e.g. `fp8_e4m3:group/128,rope=bf16`.
The row of 528 bytes (512 fp8 with 16 e8m0 scales) needs no name: `fp8_e4m3:group/32,scale=e8m0,pack=slot`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import Named, parse_format
from kvplan.formats.grid import Recipe, Tensor, bind
from kvplan.formats.layout import Layout

RECORDS = {
    "fp8_ds_mla": Recipe(parse_format("fp8_e4m3:group/128,scale=fp32,pack=slot,rope=bf16"), widths=(512, 64)),
    "fp8_ds_v4": Recipe(
        parse_format("fp8_e4m3:group/64,scale=e8m0,pack=page,rope=bf16"), pad_bytes=1, page_align=576, widths=(448, 64)
    ),
    # The grammar keeps a rope part in 16 bit only: nobody else stores it in fp8.
    "nvfp4_ds_mla": Recipe(
        replace(parse_format("fp4_e2m1,scale=e4m3,pack=slot"), rope="fp8_e4m3"), widths=(512, 64)
    ),
}  # fmt: skip


def _page_bytes(name: str, page_size: int) -> int:
    nope, rope = RECORDS[name].widths or (0, 0)
    return bind([Tensor("latent", Named(name), nope + rope, rope)], 1, "bf16").page_bytes(page_size)


assert _page_bytes("fp8_ds_mla", 64) == 64 * 656
assert _page_bytes("nvfp4_ds_mla", 64) == 64 * 352
# 576 rows of 584 bytes are whole units of 576; 64 rows are 37,376 bytes and end inside the 65th unit.
assert _page_bytes("fp8_ds_v4", 576) == 576 * 584
assert _page_bytes("fp8_ds_v4", 64) == 65 * 576


@dataclass(frozen=True)
class LatentView:
    """What a kernel needs of one MLA latent, as a compile key: one slot a token, offsets in bytes from its start.

    Attributes:
        number: of the nope part, which begins the slot and is also the values: `fp8_e4m3`, `fp16` or `bf16`.
        nope, rope: channels of the two parts.
        rope_storage: `fp16` or `bf16`.
        group: nope channels that share a scale; 0 without scales.
        scale_at, rope_at, slot_bytes: of the fp32 scales, of the rope part, and of the whole slot.
    """

    number: str
    nope: int
    rope: int
    rope_storage: str
    group: int
    scale_at: int
    rope_at: int
    slot_bytes: int

    @property
    def quantised(self) -> bool:
        return self.group > 0

    @property
    def is_int(self) -> bool:
        return False

    @property
    def dim(self) -> int:
        return self.nope + self.rope

    @property
    def part(self) -> int:
        """Nope channels that kernels handle as one: those of a scale, without scales as many as a tile can have."""
        return self.group or self.nope & -self.nope

    @property
    def parts(self) -> int:
        return self.nope // self.part

    @property
    def recent(self) -> int:
        """No row of a latent waits unquantised (the work list asks)."""
        return 0


def latent_view(layout: Layout) -> LatentView:
    """The kernel's view of a latent: `fp8_ds_mla` and other fp8 by groups with a 16-bit rope part, or 16 bit.

    Raises:
        UnsupportedError: no latent, or a format whose latent kernels do not exist.
    """
    tensor = next((t for t in layout.tensors if t.role == "latent"), None)
    if tensor is None:
        raise UnsupportedError("this layout has no MLA latent", "K and V have kernels of their own")
    nope = tensor.dim - tensor.rope_dim
    plain = tensor.number in ("fp16", "bf16") and not tensor.recent
    record = (tensor.number, tensor.granularity, tensor.scale, tensor.pack) == ("fp8_e4m3", "group", "fp32", "slot")
    record = record and tensor.rope in ("fp16", "bf16") and not (tensor.recent or tensor.row or tensor.rot)
    shaped = tensor.rope_dim >= 16 and not tensor.rope_dim & (tensor.rope_dim - 1) and nope % 32 == 0
    if not (plain or (record and tensor.group >= 32 and not tensor.group & (tensor.group - 1))) or not shaped:
        raise UnsupportedError(
            f"latent format {tensor.spelling} of {nope} + {tensor.rope_dim} channels has no kernel: it can be planned",
            "kernels read fp8_ds_mla, fp8_e4m3:group/N,scale=fp32,pack=slot,rope=bf16 and 16 bit",
        )
    plane = layout.plane("latent", "codes")
    if record:
        scale_at, rope_at = plane.offset("latent", "scale"), plane.offset("latent", "rope")
        return LatentView(
            tensor.number, nope, tensor.rope_dim, tensor.rope, tensor.group, scale_at, rope_at, plane.slot_bytes
        )
    rope_at = plane.slot_bytes * nope // tensor.dim
    return LatentView(tensor.number, nope, tensor.rope_dim, tensor.number, 0, 0, rope_at, plane.slot_bytes)
