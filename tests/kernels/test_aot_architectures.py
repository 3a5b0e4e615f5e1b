"""One kernel of each family compiles for sm_80 and sm_100 too; on other Tritons than the pinned one a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

ARCHITECTURES = ("--capability", "80", "--capability", "100")


@pytest.mark.parametrize(
    ("module", "kernels", "elsewhere"),
    [("kvplan_kernels.aot_check", 2 * 11, 2 * 3), ("kvplan_kernels.store.aot_check", 2 * 18, 2 * 10)],
)
def test_kernels_compile_for_other_architectures(
    compile_ahead: Callable[..., dict[str, Any]], triton_folder: str, module: str, kernels: int, elsewhere: int
) -> None:
    found = compile_ahead(module, triton_folder, ARCHITECTURES)
    rows = found["kernels"]
    assert len(rows) == (kernels if found["triton"] == "3.6.0" else elsewhere)
    assert {row["capability"] for row in rows} == {80, 100}
    for row in rows:
        if row["kernel"].startswith("decode"):
            assert row["asynchronous_copies"] > 0 and row["matrix_instructions"] > 0, row
            assert row["loop"]["HMMA"] > 0, row
