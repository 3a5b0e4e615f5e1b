"""`accuracy.py logs FILE`: every printed log against kvplan's engines."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import logs
from kvplan.errors import KvplanError
from logs.common import DIFFERENT, EXPLAINED, Finding

_FRAME = ("common", "run")
INDEPENDENT = "independent"


def readers() -> dict[str, Any]:
    """Engine name, as the logs have it, to the module that reads them."""
    modules = [import_module(f"logs.{found.name}") for found in iter_modules(logs.__path__) if found.name not in _FRAME]
    return {name: module for module in modules for name in module.ENGINES}


def compare(path: Path) -> list[Finding]:
    """Every log of a file."""
    by_engine = readers()
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    return [_check(by_engine, r) for r in records]


def _check(by_engine: dict[str, Any], record: dict[str, Any]) -> Finding:
    """One log; a record that cannot be read is different, and does not end the comparison of the others."""
    try:
        finding: Finding = by_engine[record["engine"]].check(record)
    except (KvplanError, AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
        why = f"not understood: {error!r:.200}"
        return Finding(record["id"], record["engine"], record["evidence_strength"], DIFFERENT, why=why)
    return finding


def logs_command(path: Path, as_json: bool) -> int:
    """Print what was reproduced, of all logs and of the independent ones; 1 if an independent one is unexplained."""
    findings = compare(path)
    independent = [f for f in findings if f.strength == INDEPENDENT]
    counts = {
        "all": dict(Counter(f.verdict for f in findings)),
        "independent": dict(Counter(f.verdict for f in independent)),
    }
    if as_json:
        print(json.dumps({"summary": counts, "logs": [asdict(f) for f in findings]}, indent=1))
    else:
        for f in findings:
            if f.verdict in (DIFFERENT, EXPLAINED):
                off = "; ".join(
                    f"{c.what} {c.printed} not in {c.low:g}..{c.high:g}" for c in f.compared if not c.agrees
                )
                print(f"{f.verdict}: {f.log} {f.engine} ({f.strength}): {off}{' - ' + f.why if f.why else ''}")
        for name, count in counts.items():
            print(f"{name}: " + ", ".join(f"{verdict} {n}" for verdict, n in sorted(count.items())))
    return 1 if any(f.verdict == DIFFERENT for f in independent) else 0
