"""Write tests/kernels/aot_goldens.json and the table of docs/kernel_notes.md: what the compiler makes of each kernel.

python tools/make_aot_goldens.py [REPORT.json ...]

Without reports of the MODULES for sm_90 all are run. Counts are
recorded for one Triton. A row whose counts changed loses what was measured: fill its last column in by hand, with the
time on a GPU or `not timed: reason`, and add a line to the history.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
GOLDENS = REPO / "tests" / "kernels" / "aot_goldens.json"
NOTES = REPO / "docs" / "kernel_notes.md"
MODULES = (
    "kvplan_kernels.aot_check",
    "kvplan_kernels.attention.prefill_aot",
    "kvplan_kernels.attention.aot_latent",
    "kvplan_kernels.store.aot_check",
)
TRITON = "3.6.0"
COUNTS = ("registers", "spills", "shared_bytes", "matrix_instructions", "asynchronous_copies", "per_element")
HEADINGS = ("kernel", "registers", "spills", "shared bytes", "mma", "async copies", "per element", "measured")
START, END = "<!-- goldens: tools/make_aot_goldens.py -->", "<!-- end of goldens -->"
TO_MEASURE = "TO BE MEASURED"


def main() -> int:
    reports = [json.loads(Path(path).read_text()) for path in sys.argv[1:]] or [_compile(m) for m in MODULES]
    assert all(report["triton"] == TRITON for report in reports), f"goldens are counts of Triton {TRITON}"
    goldens = {k["kernel"]: golden(k) for report in reports for k in report["kernels"] if is_recorded(k["kernel"])}
    GOLDENS.write_text(dump(goldens))
    page = NOTES.read_text()
    before, rest = page.split(START)
    old, after = rest.split(END)
    NOTES.write_text(f"{before}{START}\n{table(goldens, rows_of(old))}\n{END}{after}")
    return 0


def _compile(module: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def is_recorded(name: str) -> bool:
    """Kernels of other architectures have it in their names."""
    return "sm_" not in name or name.endswith("sm_90")


def golden(kernel: dict[str, Any]) -> list[Any]:
    """What is recorded of one compiled kernel, in the order of COUNTS."""
    return [kernel.get(name) for name in COUNTS]


def differing(report: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Kernels of these kinds whose counts in a report are not the recorded ones: (now, recorded). Of other Tritons none
    are recorded."""
    if report["triton"] != TRITON:
        return {}
    recorded = json.loads(GOLDENS.read_text())["kernels"]
    stored = {name: counts for name, counts in recorded.items() if name.startswith(kinds)}
    now = {k["kernel"]: golden(k) for k in report["kernels"] if is_recorded(k["kernel"])}
    return {n: (now.get(n), stored.get(n)) for n in now | stored if now.get(n) != stored.get(n)}


def dump(goldens: dict[str, list[Any]]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in goldens.items()]
    head = f'"triton": "{TRITON}",\n"capability": 90,\n"columns": {json.dumps(COUNTS)},\n"kernels": {{\n'
    return "{" + head + ",\n".join(lines) + "\n}}\n"


def row(name: str, counts: list[Any]) -> str:
    """The generated part of a row of the table."""
    return " | ".join([f"| `{name}`", *("-" if n is None else str(n) for n in counts)])


def rows_of(text: str) -> dict[str, str]:
    """Generated part of each row to its measured column."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return {line.rsplit(" | ", 1)[0]: line.rsplit(" | ", 1)[1].removesuffix(" |") for line in lines}


def table(goldens: dict[str, list[Any]], measured: dict[str, str]) -> str:
    """The table; a row that is new or has other counts waits to be measured."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" + "|---:" * len(COUNTS) + "|---|"]
    for name, counts in goldens.items():
        start = row(name, counts)
        lines.append(f"{start} | {measured.get(start, TO_MEASURE)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
