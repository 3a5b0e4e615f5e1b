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

from dataclasses import replace

from kvplan.formats.grammar import Named, parse_format
from kvplan.formats.grid import Recipe, Tensor, bind

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
