"""Compare kvplan with collected facts.

python tools/accuracy.py configs DIR [--json]       import every config of a folder
python tools/accuracy.py golden FILE... [--json]    figures produced by the engines' own code
python tools/accuracy.py logs FILE [--json]         figures that engines printed in public logs

The tool maps inputs to public calls of kvplan and compares; it computes no bytes (a test forbids arithmetic here).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError
from kvplan.memory.states import state_elements
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.importers.config import import_path
from kvplan.specs.model import ModelSpec

NATIVE = "bf16"
FP8_INDEX = "fp8_e4m3:token,scale=fp32,pack=page"
"""A 128-element index key in fp8 with one fp32 scale."""


@dataclass(frozen=True)
class Row:
    """One expected figure of one config."""

    config: str
    key: str
    verdict: str
    expected: float
    found: float | None
    why: str = ""


def plan_of(spec: ModelSpec, **options: Any) -> Plan:
    """A plan at the model's longest context, everything in 16 bit unless the options say otherwise."""
    formats = dict.fromkeys(("k", "v", "latent", "index"), NATIVE) | options
    return make_plan(PlanRequest(model=spec.id, context=spec.max_context, **formats), spec)


def slope(plan: Plan, *roles: str) -> Fraction:
    """Bytes per token of the groups with these roles."""
    return sum(
        (Fraction(g.bytes_per_token.numerator, g.bytes_per_token.denominator) for g in _groups(plan, *roles)),
        Fraction(),
    )


def fixed(plan: Plan, *roles: str) -> int:
    """Bytes per sequence that do not grow."""
    return sum(g.fixed_bytes_per_sequence for g in _groups(plan, *roles))


def states(spec: ModelSpec, plan: Plan, kind: str) -> int:
    """State bytes of the layer groups of one kind: `state`, or `latent` for rings."""
    names = {group.name for group in spec.layer_groups if group.kind == kind}
    return sum(g.state_bytes for g in _groups(plan, "state") if g.name in names)


def elements(spec: ModelSpec, which: int) -> int:
    """Elements of all states: 0 recurrent, 1 convolution."""
    groups = [group for group in spec.layer_groups if group.kind == "state"]
    return sum(state_elements(group.state, tp=1)[which] for group in groups for _ in spec.positions(group))


def one_encoder_token(spec: ModelSpec) -> ModelSpec:
    """The same model with an encoder that gives a single token."""
    data = spec.model_dump()
    for group in data["layer_groups"]:
        if group["kind"] == "cross":
            group["encoder_tokens"]["count"] = 1
    return ModelSpec.model_validate(data)


FIGURES: dict[str, Callable[[ModelSpec], Fraction | int]] = {
    "kv_per_token": lambda spec: slope(plan_of(spec), "kv", "latent"),
    "window_bytes": lambda spec: fixed(plan_of(spec), "kv", "latent"),
    "index_per_token_bf16": lambda spec: slope(plan_of(spec), "index"),
    "index_per_token_fp8": lambda spec: slope(plan_of(spec, index=FP8_INDEX), "index"),
    "state_bytes_fp32rec_bf16conv": lambda spec: states(
        spec, plan_of(spec, state_dtype="fp32", conv_dtype="bf16"), "state"
    ),
    "state_bytes_all_bf16": lambda spec: states(spec, plan_of(spec, state_dtype="bf16", conv_dtype="bf16"), "state"),
    "rec_elems": lambda spec: elements(spec, 0),
    "conv_elems": lambda spec: elements(spec, 1),
    "ring_bytes": lambda spec: states(spec, plan_of(spec), "latent"),
    "cross_per_enc_token": lambda spec: fixed(plan_of(one_encoder_token(spec)), "cross"),
}
"""Key of `expected` to the public calls that answer it."""


def compare(folder: Path, entry: dict[str, Any]) -> list[Row]:
    """All expected figures of one config."""
    name, expected = entry["file"], entry["expected"]
    try:
        spec = import_path(folder.joinpath(name)).spec
    except KvplanError as error:
        return [Row(name, key, "refused", value, None, error.message) for key, value in expected.items()]
    return [_compare(name, spec, key, value) for key, value in expected.items()]


def _compare(name: str, spec: ModelSpec, key: str, expected: float) -> Row:
    if key not in FIGURES:
        return Row(name, key, "different", expected, None, "this tool does not know the key")
    try:
        found = FIGURES[key](spec)
    except KvplanError as error:
        return Row(name, key, "different", expected, None, error.message)
    same = found == Fraction(expected)
    return Row(name, key, "equal" if same else "different", expected, float(found))


def _groups(plan: Plan, *roles: str) -> list[Any]:
    assert plan.kv is not None
    return [group for group in plan.kv.by_group if group.role in roles]


def configs(folder: Path, as_json: bool) -> int:
    """Compare every config of a folder with its index; 1 if anything differs or is refused."""
    index = json.loads(folder.joinpath("index.json").read_text(encoding="utf-8"))
    rows = [row for entry in index for row in compare(folder, entry)]
    by_config: dict[str, list[Row]] = {entry["file"]: [] for entry in index}
    for row in rows:
        by_config[row.config].append(row)
    order = ("refused", "different", "equal")
    worst = {
        name: min((r.verdict for r in found), key=order.index, default="equal") for name, found in by_config.items()
    }
    names = {verdict: [name for name, found in worst.items() if found == verdict] for verdict in order}
    summary = {verdict: len(names[verdict]) for verdict in order} | {"figures": len(rows)}
    if as_json:
        print(json.dumps({"summary": summary, "configs": worst, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        _print(rows, names, summary)
    return 1 if names["refused"] or names["different"] else 0


def _print(rows: list[Row], names: dict[str, list[str]], summary: dict[str, int]) -> None:
    for row in rows:
        if row.verdict != "equal":
            print(f"{row.verdict}: {row.config} {row.key}: expected {row.expected}, found {row.found} {row.why}")
    print("equal:", " ".join(names["equal"]))
    print(", ".join(f"{key} {count}" for key, count in summary.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the exit code."""
    parser = argparse.ArgumentParser(prog="accuracy.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("configs", help="import every config of a folder and compare its expected totals")
    one.add_argument("folder", type=Path)
    one.add_argument("--json", action="store_true", dest="as_json")
    two = commands.add_parser("golden", help="compare golden figures of engines")
    two.add_argument("files", type=Path, nargs="+")
    two.add_argument("--json", action="store_true", dest="as_json")
    three = commands.add_parser("logs", help="compare figures printed in public logs")
    three.add_argument("file", type=Path)
    three.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args(argv)
    # Imported here: each reads the engines' modules.
    if given.command == "golden":
        from golden.run import golden_command

        return golden_command(given.files, given.as_json)
    if given.command == "logs":
        from logs.run import logs_command

        return logs_command(given.file, given.as_json)
    return configs(given.folder, given.as_json)


if __name__ == "__main__":
    sys.exit(main())
