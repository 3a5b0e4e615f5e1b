"""A plan as renderer-neutral rows and lines; every number is the plan's own."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.breakdown import Node, Product, Sum, leaves
from kvplan.memory.figures import Figures, Ratio
from kvplan.plan import Plan
from kvplan.plan.types import Breakdown
from kvplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the component table.

    Attributes:
        kind: `group` (a heading), `term` (a product with its formula) or `total`.
        detail: the formula, or the exact bytes of a total.
    """

    kind: str
    component: str
    detail: str
    size: str


def title(plan: Plan) -> str:
    """The request in full: model, sizes, formats."""
    r = plan.request
    length = f"context {r.context:,} tokens" if r.context else "no context given"
    formats = ", ".join(f"{role} {value}" for role in ("k", "v", "latent", "index") if (value := getattr(r, role)))
    requests = "1 request" if r.batch == 1 else f"{r.batch:,} requests"
    ranks = f"tp {r.tp}" + "".join(
        f", {name} {n}" for name in ("pp", "dp", "dcp", "pcp") if (n := getattr(r, name)) > 1
    )
    ranks += ", dp attention" if r.dp_attention else ""
    rules = "".join(f"; layers {rule}" for rule in r.layers) + ("; with MTP layers" if r.mtp else "")
    page_size = plan.engine.page_size if plan.engine else r.page_size
    page = f", page size {page_size:,}" if page_size else ""
    engine = f"; {plan.engine.title} {plan.engine.version}" if plan.engine else ""
    return f"{plan.model.id}: {length}, {requests}, {ranks}{page}; {formats or 'states only'}{rules}{engine}"


def component_rows(plan: Plan) -> list[Row]:
    """The table by component: logical terms by group, then the totals; without a context, what a token adds."""
    trees = plan.breakdown
    if plan.kv is None or trees.logical is None or trees.allocated is None:
        first = plan.ladder[0]
        return [
            *_tree_rows(trees.growth, plan),
            Row(
                "total", _each(trees.growth_tokens), f"{trees.growth.nbytes:,} bytes per sequence", _size(trees.growth)
            ),
            _total("bytes per sequence beyond that", first.fixed_bytes_per_sequence),
            *_constant_rows(trees.constant),
        ]
    kv = plan.kv
    return [
        *_tree_rows(trees.logical, plan),
        _total("logical", kv.logical_bytes),
        *_named_terms(trees.allocated),
        _total("allocated", kv.allocated_bytes),
        *_parts(kv, trees),
        *_constant_rows(trees.constant),
        *_copies(plan, kv.replicated_bytes),
        *([_scratch(trees.prefix_scratch)] if trees.prefix_scratch else ()),
    ]


def _scratch(tree: Node) -> Row:
    """Beside the cache, for the time of a prefill."""
    formula = tree.formula if isinstance(tree, Product) else ""
    return Row("total", "prefix hit", f"one layer in 16 bit: {formula}", _size(tree))


def _parts(kv: Figures, trees: Breakdown) -> list[Row]:
    """From logical to allocated; reserved and padding are shown even at zero, as they are figures of their own."""
    rows = [
        _total("of it reserved", kv.reserved_bytes),
        *(_named_terms(trees.reserved) if trees.reserved else ()),
        _total("of it padding", kv.padding_bytes),
        *(_named_terms(trees.padding) if trees.padding else ()),
    ]
    if trees.padding and trees.padding.nbytes and kv.padding_bytes > trees.padding.nbytes:
        rest = kv.padding_bytes - trees.padding.nbytes
        rows.append(Row("term", "page rounding", f"{rest:,} bytes: the rest", format_bytes(rest)))
    if trees.saves and trees.saves.nbytes:
        rows += [_total("not stored by the engine", kv.engine_saves_bytes), *_named_terms(trees.saves)]
    return rows


def _copies(plan: Plan, nbytes: int) -> list[Row]:
    """The waste of the whole layout of GPUs, where there is any."""
    gpus = plan.sharding.gpus if plan.sharding else plan.request.tp
    return [_total(f"copies, all {gpus:,} GPUs", nbytes)] if nbytes else []


def _constant_rows(tree: Node) -> list[Row]:
    return [*_named_terms(tree), _total("constant, apart", tree.nbytes)]


def _named_terms(tree: Node) -> list[Row]:
    """The products of a tree of groups, each under its group's name where there are several."""
    groups = tree.children if isinstance(tree, Sum) else ()
    return [
        Row("term", f"{g.label} {leaf.label}" if len(groups) > 1 else leaf.label, leaf.formula, _size(leaf))
        for g in groups
        for leaf in leaves(g)
    ]


def _tree_rows(tree: Node, plan: Plan) -> list[Row]:
    """One heading for each layer group that owns bytes, and its products."""
    figures = {g.name: g for g in (plan.kv or plan.ladder[0]).by_group}
    rows = []
    for group in tree.children if isinstance(tree, Sum) else ():
        if not group.nbytes:
            continue
        head = figures[group.label]
        formats = ", ".join(f"{role} {spelling}" for role, spelling in head.formats.items())
        rows.append(Row("group", head.name, f"{head.role}, {head.layers} layers; {formats}", _size(group)))
        rows += [Row("term", leaf.label, leaf.formula, _size(leaf)) for leaf in leaves(group)]
    return rows


def ladder_rows(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """(headings, cells) of the ladder; with a GPU also what fits at each length."""
    headings = ["context", "logical", "allocated"]
    cells = [
        [f"{kv.context:,}", format_bytes(kv.logical_bytes), format_bytes(kv.allocated_bytes)] for kv in plan.ladder
    ]
    if plan.capacity:
        headings += ["requests that fit", "tokens"]
        for row, fit in zip(cells, plan.capacity.by_context, strict=True):
            row += [f"{fit.requests:,}", f"{fit.tokens:,}"]
    return headings, cells


def slope_line(plan: Plan) -> str:
    """Bytes per token and fixed bytes per sequence."""
    kv = plan.kv or plan.ladder[0]
    fixed = f"{kv.fixed_bytes_per_sequence:,} bytes fixed per sequence"
    return f"{ratio_text(kv.bytes_per_token)} bytes per token, {fixed} (logical, beyond all windows)"


def sharding_lines(plan: Plan) -> list[str]:
    """The layout of GPUs and what each pipeline stage holds; nothing for a single GPU."""
    ranks = plan.sharding
    if ranks is None or ranks.gpus == 1:
        return []
    lines = [f"{ranks.gpus:,} GPUs; {ranks.sequences:,} sequences on the fullest of {ranks.replicas} replicas"]
    for s in ranks.stages if len(ranks.stages) > 1 else ():
        shown = ", shown here" if s.stage == ranks.stage else ""
        lines.append(f"stage {s.stage}: layers {s.first_layer}-{s.last_layer}, {format_bytes(s.held_bytes)}{shown}")
    return lines


def verdict_lines(plan: Plan) -> list[str]:
    """Whether it fits, why not, and what would."""
    if plan.verdict is None:
        return []
    if plan.verdict.fits:
        return ["the request fits"]
    changes = " or ".join(f"{c.option} {c.value}" for c in plan.verdict.nearest_change)
    nearest = f"nearest change that fits: {changes}" if changes else "no single change of context, batch or tp fits"
    return ["does not fit: " + "; ".join(plan.verdict.reasons), nearest]


def gain_lines(plan: Plan) -> list[str]:
    """Both gains over the native dtype, apart."""
    if plan.gain is None:
        return []
    fixed, pool = plan.gain.fixed_requests, plan.gain.preallocated_pool
    before, after = format_bytes(fixed.before_bytes), format_bytes(fixed.after_bytes)
    lines = [f"fixed requests: the cache goes from {before} to {after} ({fixed.ratio.value:.2f}x)"]
    if pool:
        lines.append(
            f"preallocated pool: device memory stays; requests {pool.requests_before:,} -> {pool.requests_after:,}, "
            f"tokens {pool.tokens_before:,} -> {pool.tokens_after:,}"
        )
    return lines


def _each(tokens: int) -> str:
    return "each further token" if tokens == 1 else f"each further {tokens:,} tokens"


def _total(name: str, nbytes: int) -> Row:
    return Row("total", name, f"{nbytes:,} bytes", format_bytes(nbytes))


def _size(node: Node) -> str:
    return format_bytes(node.nbytes)


def ratio_text(ratio: Ratio) -> str:
    """A fraction in full, with its value."""
    if ratio.denominator == 1:
        return f"{ratio.numerator:,}"
    return f"{ratio.numerator:,}/{ratio.denominator:,} = {ratio.value:,.2f}"
