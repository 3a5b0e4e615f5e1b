"""Formats known by a name: nearly all are spellings of the grammar, so they share its layouts and codecs.

`nvfp4 mxfp4 mxfp8` are the OCP and NVIDIA block formats. The ggml types (`q8_0` ... `iq4_nl`) run their blocks of 32
along the rank's whole row: 34, 24, 22, 20, 18 and 18 bytes per block. Records of latents stand in ds_mla.py, the joint
K and V slots in turboquant.py.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.formats.grammar import parse_format
from kvplan.formats.grid import Recipe, row_bytes

SPELLINGS = {
    "nvfp4": "fp4_e2m1,scale=e4m3,global=fp32,pack=page",
    "mxfp4": "fp4_e2m1:group/32,scale=e8m0",
    "mxfp8": "fp8_e4m3:group/32,scale=e8m0",
    "q8_0": "int8:group/32,row,pack=slot",
    "q5_1": "int5:group/32,asym,row,pack=slot",
    "q5_0": "int5:group/32,row,pack=slot",
    "q4_1": "int4:group/32,asym,row,pack=slot",
    "q4_0": "int4:group/32,row,pack=slot",
    "iq4_nl": "int4:group/32,row,pack=slot",
}
"""Name to the spelling with the same planes."""


def recipe_of(name: str) -> Recipe:
    """What a name of the grammar stands for, for one tensor."""
    if name not in SPELLINGS:
        from kvplan.formats.ds_mla import RECORDS

        return RECORDS[name]
    made = parse_format(SPELLINGS[name])
    # Bytes as q4_0, but its 16 codes mean the values of a fixed table: a number of its own.
    return Recipe(replace(made, number="iq4_nl") if name == "iq4_nl" else made)


# Bytes of K + V of one (token, head) at head_dim 128; 8 blocks of 32 for the ggml types.
for _name, _size in {
    "nvfp4": 144, "mxfp4": 136, "mxfp8": 264, "q8_0": 8 * 34, "q5_1": 8 * 24, "q5_0": 8 * 22, "q4_1": 8 * 20,
    "q4_0": 8 * 18, "iq4_nl": 8 * 18,
}.items():  # fmt: skip
    assert row_bytes(_name) == _size, _name
