"""Print the README's table of measured results from a stored validation: python tools/readme_table.py REPORT.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADINGS = (
    "format",
    "capacity",
    "decode, one layer",
    "TB/s",
    "of the read roof",
    "x best 16 bit",
    "x unfused",
    "kernel error",
)


def table(report: dict[str, Any]) -> str:
    """Markdown table of a `kvplan.validation/1` report, one row per format."""
    lines = [" | ".join(HEADINGS), "|".join(["---", *["---:"] * (len(HEADINGS) - 1)])]
    for result in report["results"]:
        t = result["times"]
        unfused = "-" if t["fusion_gain"] is None else f"{t['fusion_gain']:.2f}"
        cells = (
            f"`{result['format']}`",
            f"{result['capacity_gain']:.2f}x",
            f"{t['fused_seconds'] * 1e6:.1f} us",
            f"{t['bytes_per_second'] / 1e12:.2f}",
            f"{t['roof_share']:.1%}",
            f"{t['speedup']:.2f}",
            unfused,
            f"{result['kernel_error']:.1e}",
        )
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
