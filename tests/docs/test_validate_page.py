"""docs/validate.md names every phase and exit code of `kvplan validate`, and so does what else lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from kvplan.errors import ExitCode
from kvplan.report.schema import result_schema
from kvplan.validate.report import PHASES, PhaseName

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "validate.md").read_text(encoding="utf-8")


def test_every_phase_is_on_the_page_and_has_a_module() -> None:
    assert get_args(PhaseName) == PHASES
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(PHASES)
    assert {p.stem for p in (REPO / "kvplan/validate/phases").glob("*.py")} >= set(PHASES)
    assert all(name in (REPO / "README.md").read_text(encoding="utf-8") for name in PHASES)


def test_every_exit_code_is_on_the_page() -> None:
    codes = {int(n) for n in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert codes == {int(c) for c in ExitCode} - {int(ExitCode.INTERNAL)}


def test_the_schema_describes_every_field_of_a_phase() -> None:
    schema: dict[str, Any] = result_schema("validation")
    for name in ("PhaseResult", "Drift", "Clipping"):
        fields = schema["$defs"][name]["properties"]
        bare = [f for f, known in fields.items() if "description" not in known and "$ref" not in known]
        assert not bare, (name, bare)
