"""Write docs/results/engine_accuracy.json: kvplan's engines against collected golden figures and printed logs.

python tools/engine_accuracy.py DATA [--check]     DATA holds *_golden.json and engine_logs.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from golden.run import compare as compare_golden
from golden.run import summary
from logs.common import DIFFERENT, EXPLAINED, REPRODUCED, Finding
from logs.run import INDEPENDENT
from logs.run import compare as compare_logs

RESULT = Path(__file__).resolve().parents[1] / "docs" / "results" / "engine_accuracy.json"


def measure(data: Path) -> dict[str, Any]:
    """Counts of every golden file and of the logs, by engine, with the commands that print them in full."""
    files = {path.name: summary(compare_golden(path)) for path in sorted(data.glob("*_golden.json"))}
    findings = compare_logs(data / "engine_logs.json")
    explained = [f for f in findings if f.strength == INDEPENDENT and f.verdict == EXPLAINED]
    return {
        "golden": {"command": "python tools/accuracy.py golden ../shared/data/*_golden.json", "files": files},
        "logs": {
            "command": "python tools/accuracy.py logs ../shared/data/engine_logs.json",
            "engines": {name: _count(findings, name) for name in dict.fromkeys(f.engine for f in findings)},
            "explained": [{"log": f.log, "engine": f.engine, "why": f.why} for f in explained],
        },
    }


def _count(findings: list[Finding], engine: str) -> dict[str, int]:
    own = [f for f in findings if f.engine == engine]
    verdicts = Counter(f.verdict for f in own)
    independent = Counter(f.verdict for f in own if f.strength == INDEPENDENT)
    return {
        "logs": len(own),
        "reproduced": verdicts[REPRODUCED],
        "independent": sum(independent.values()),
        "independent_reproduced": independent[REPRODUCED],
        "independent_explained": independent[EXPLAINED],
        "independent_different": independent[DIFFERENT],
    }


def main(argv: list[str]) -> int:
    """Write the file, or with --check only compare it."""
    text = json.dumps(measure(Path(argv[0])), indent=1) + "\n"
    if "--check" in argv:
        return int(not RESULT.exists() or RESULT.read_text(encoding="utf-8") != text)
    RESULT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
