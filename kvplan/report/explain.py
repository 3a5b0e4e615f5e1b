"""Every factor of a plan, the field it comes from, and the arithmetic; no number is computed here."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.breakdown import Node, Sum, leaves
from kvplan.plan import Plan


def explain_lines(plan: Plan) -> Iterator[str]:
    """Indented lines: for each tree its sum, for each product its arithmetic, for each factor its source."""
    trees = plan.breakdown
    shown: list[tuple[str, Node]] = []
    if trees.logical is not None and trees.allocated is not None:
        shown = [("logical", trees.logical), ("allocated", trees.allocated)]
    else:
        shown = [(f"every {trees.growth_tokens:,} further tokens of a sequence", trees.growth)]
    for name, tree in (
        ("reserved", trees.reserved),
        ("padding with a name", trees.padding),
        ("not stored", trees.saves),
    ):
        if tree is not None and tree.nbytes:
            shown.append((name, tree))
    if trees.constant.nbytes:
        shown.append(("constant", trees.constant))
    if plan.capacity is not None:
        shown.append(("weights of one rank", plan.capacity.weights))
    for name, tree in shown:
        yield ""
        yield from _tree(name, tree)


def _tree(name: str, tree: Node) -> Iterator[str]:
    products = [leaf for leaf in leaves(tree) if leaf.nbytes]
    yield f"{name}: {' + '.join(f'{p.nbytes:,}' for p in products) or '0'} = {tree.nbytes:,} bytes"
    for group in tree.children if isinstance(tree, Sum) else (tree,):
        for leaf in leaves(group):
            if not leaf.nbytes:
                continue
            yield f"  {group.label}: {leaf.label}" if group is not leaf else f"  {leaf.label}"
            arithmetic = " x ".join(f"{f.value:,}" for f in leaf.factors)
            yield f"    {arithmetic} = {leaf.nbytes:,} bytes [{leaf.basis}: {leaf.source}]"
            for factor in leaf.factors:
                yield f"      {factor.value:,} {factor.name}" + (f" <- {factor.source}" if factor.source else "")
