"""The space that is searched without an engine: formats of K and V, layers kept in 16 bit, page sizes, layouts.

Formats are those that have kernels (`kvplan.validate.candidates`); residuals are part of a format's spelling.
"""

from __future__ import annotations

_BOTH = (
    "int8:token", "int8:token,asym", "int8:group/32", "int8:head", "int8:tensor", "int8:channel", "int8:channel/32",
    "fp8_e4m3:tensor", "fp8_e4m3:head", "fp8_e4m3:token", "fp8_e5m2:tensor", "mxfp8",
    "int4:token,asym", "int4:group/32", "int4:group/32,asym", "nvfp4", "mxfp4", "int4,rot",
)  # fmt: skip
K_FORMATS = (*_BOTH, "int4:channel/32,asym", "int4:channel/32,asym,recent=128")
V_FORMATS = (*_BOTH, "int4:group/32,asym,recent=32", "int4:group/32,asym,recent=128")
_LOW = ("int3,rot", "int2:token,asym", "int2:group/32,asym", "int2,rot")
LOW_K = (*_LOW, "int2:channel/32,asym", "int2:channel/32,asym,recent=128")
LOW_V = (*_LOW, "int2:group/32,asym,recent=32", "int2:group/32,asym,recent=128")
"""Fewer than 4 bits: combined with others only where a report of the model says what they lose, else shown as pairs."""
LATENT_FORMATS = ("fp8_ds_mla",)
KEPT = ((), ("first=2",), ("last=2",), ("first=2", "last=2"))
"""Layers that stay in the model's own dtype."""
PAGES = (None, 256, 512)
"""Tokens per page; None: the least that the formats allow. Larger ones only add unfilled rows."""
SENSITIVE = 2
"""How many of the layers that suffer most are tried in 16 bit, where the model's own tensors say which."""
