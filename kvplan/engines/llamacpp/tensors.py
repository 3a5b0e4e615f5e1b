"""Bytes of one layer's tensors, from layouts: K and V apart, rows that llama.cpp widens, what CUDA adds."""

from __future__ import annotations

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state

MATRIX_ROW = 512
"""Elements that CUDA kernels read of a quantised row at once (MATRIX_ROW_PADDING of ggml-cuda)."""


def row_layout(role: str, spelling: str, dim: int) -> Layout:
    """The layout of one tensor whose row has `dim` elements."""
    return bind((Tensor(role, parse_any(spelling), dim),), 1, "fp16")


def tensor_bytes(layout: Layout, role: str, rows: int) -> int:
    """Bytes of `rows` rows of one tensor of one layer."""
    return sum(p.page_bytes(rows, layout.heads) for p in layout.scoped("page") if p.fields[0].tensor == role)


def row_elements(layout: Layout, role: str) -> int:
    """Elements of a row of all heads."""
    return layout.heads * layout.tensor(role).dim


def block(layout: Layout, role: str) -> int:
    """Elements of a quantised block; 1 for plain numbers."""
    return layout.tensor(role).group or 1


def cuda_bytes(layout: Layout, role: str) -> int:
    """Bytes that CUDA adds to one tensor: a quantised row is followed by what is missing to a multiple of 512."""
    missing = -row_elements(layout, role) % MATRIX_ROW
    if block(layout, role) == 1 or not missing:
        return 0
    return row_layout(role, layout.tensor(role).spelling, missing).page_bytes(1)


def float_states(layout: Layout) -> Layout:
    """The states of a layer as llama.cpp keeps them: 32-bit floats, whatever the model's own type."""
    return bind_state({f.tensor: (f.items, "fp32") for p in layout.scoped("state") for f in p.fields})
