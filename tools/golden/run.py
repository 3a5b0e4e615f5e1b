"""`accuracy.py golden FILE...`: every record of golden files against kvplan's engines."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import golden
from golden.common import DIFFERENT, EQUAL, OUT, Outcome

_FRAME = ("common", "run")


def adapter(data: dict[str, Any], path: Path) -> Any:
    """The module that reads this file, by its `meta`."""
    for found in iter_modules(golden.__path__):
        if found.name not in _FRAME:
            module = import_module(f"golden.{found.name}")
            if module.claims(data):
                return module
    raise SystemExit(f"error: {path}: no engine claims this file\nhint: its meta must name the engine")


def compare(path: Path) -> list[Outcome]:
    """Every record of one file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return list(adapter(data, path).outcomes(data))


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts of a file; the share out of scope is of the records in which the engine gave figures."""
    verdicts = Counter(o.verdict for o in outcomes)
    successful = [o for o in outcomes if o.kind == "figures"]
    left_out = [o for o in successful if o.verdict == OUT]
    return {
        "records": len(outcomes),
        "equal": verdicts[EQUAL],
        "different": verdicts[DIFFERENT],
        "not_in_scope": verdicts[OUT],
        "successful": len(successful),
        "refusals": len(outcomes) - len(successful),
        "refusals_equal": sum(o.verdict == EQUAL for o in outcomes if o.kind == "refusal"),
        "not_in_scope_percent": percent(len(left_out), len(successful)),
        "rules": dict(Counter(o.rule for o in outcomes if o.verdict == OUT)),
    }


def percent(part: int, whole: int) -> float:
    """A share in per cent, to one decimal."""
    return float(f"{100 * part / whole:.1f}") if whole else 0.0


def golden_command(paths: list[Path], as_json: bool) -> int:
    """Print equal, different and not in scope for each file; 1 if anything differs."""
    files = {str(path): compare(path) for path in paths}
    counts = {name: summary(outcomes) for name, outcomes in files.items()}
    total = {key: sum(c[key] for c in counts.values()) for key in ("records", "equal", "different", "not_in_scope")}
    if as_json:
        rows = {name: [asdict(o) for o in outcomes] for name, outcomes in files.items()}
        print(json.dumps({"summary": total, "files": counts, "rows": rows}, indent=1))
    else:
        for name, outcomes in files.items():
            _print(name, outcomes, counts[name])
    return 1 if total["different"] else 0


def _print(name: str, outcomes: list[Outcome], count: dict[str, Any]) -> None:
    for o in outcomes:
        if o.verdict == DIFFERENT:
            print(f"different: {o.record}: expected {o.expected}, found {o.found}")
    for rule, records in count["rules"].items():
        print(f"not in scope: {records} records: {rule}")
    print(
        f"{Path(name).name}: equal {count['equal']}, different {count['different']}, "
        f"not in scope {count['not_in_scope']} ({count['not_in_scope_percent']}% of {count['successful']} successful); "
        f"{count['refusals_equal']} of {count['refusals']} refusals refused"
    )
