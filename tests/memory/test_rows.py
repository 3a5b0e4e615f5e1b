"""The five retention laws, by hand."""

from __future__ import annotations

import pytest

from kvplan.memory.rows import RowLaw


@pytest.mark.parametrize(
    ("law", "limit", "stride", "tokens", "rows"),
    [
        ("all", 0, 1, 0, 0),
        ("all", 0, 1, 1000, 1000),
        ("all", 0, 4, 1000, 250),
        ("all", 0, 4, 1001, 251),
        ("window", 128, 1, 100, 100),
        ("window", 128, 1, 1000, 128),
        ("chunk", 8192, 1, 8193, 8192),
        ("ring", 8, 1, 1, 8),
        ("ring", 8, 1, 100_000, 8),
        ("encoder", 1500, 1, 1, 1500),
    ],
)
def test_rows(law: str, limit: int, stride: int, tokens: int, rows: int) -> None:
    assert RowLaw(law, limit, stride).rows(tokens) == rows


def test_an_unknown_law_is_refused() -> None:
    with pytest.raises(AssertionError):
        RowLaw("sometimes")
