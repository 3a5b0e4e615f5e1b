"""A plan as renderer-neutral rows and lines; every number is the plan's own."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.breakdown import Node, Sum, leaves
from kvplan.memory.figures import Figures, Ratio
from kvplan.plan import Plan
from kvplan.plan.answers import Capacity
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
    ]


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


def capacity_lines(plan: Plan) -> list[str]:
    """The pool as a formula, and what fits in it."""
    room, device = plan.capacity, plan.device
    if room is None or device is None:
        return []
    (weights,) = leaves(room.weights)
    lines = [
        *_pool_lines(room, device.name, weights.nbytes),
        f"weights per GPU: {weights.formula} [{weights.basis}: {weights.source}]",
        f"longest single request: {room.longest_request:,} tokens (limit: {room.longest_limited_by})",
    ]
    if room.requests is not None and room.tokens is not None and plan.kv:
        replicas = plan.sharding.replicas if plan.sharding else 1
        over = f" (on {replicas} replicas)" if replicas > 1 else ""
        fits = f"requests of {plan.kv.context:,} tokens that fit{over}: {room.requests:,}; tokens: {room.tokens:,}"
        if room.requests_high is not None and room.requests_high != room.requests:
            fits += f"; at the high end of the pool {room.requests_high:,} and {room.tokens_high:,}"
        lines.insert(len(lines) - 1, fits)
    if room.draft:
        (draft,) = leaves(room.draft.weights)
        held = f"weights {format_bytes(draft.nbytes)}, cache {format_bytes(room.draft.held_bytes)}"
        lines.append(f"draft model {room.draft.model}: {held}")
    return lines + _workload_lines(room)


def _pool_lines(room: Capacity, gpu: str, weights: int) -> list[str]:
    """The pool: one subtraction without an engine, else a range with every need."""
    budget = room.budget
    if budget is None:
        left = f" - weights {format_bytes(weights)}" + (" - draft weights" if room.draft else "")
        return [
            f"{gpu}: pool {format_bytes(room.pool_bytes)} = {room.util:g} x {format_bytes(room.memory_bytes)}{left}"
        ]
    share = f"{budget.share_name or 'share'} {budget.share:g}"
    spread = f"{format_bytes(budget.pool_low_bytes)} to {format_bytes(budget.pool_high_bytes)}"
    lines = [f"{gpu}, {format_bytes(room.memory_bytes)}: pool {spread} ({share}) [{budget.rule} {budget.source}]"]
    for need in budget.needs:
        low, high = format_bytes(need.low_bytes), format_bytes(need.high_bytes)
        lines.append(f"{need.name} {low if low == high else f'{low} to {high}'} [{need.basis}: {need.source}]")
    return lines


def _workload_lines(room: Capacity) -> list[str]:
    """Requests of several lengths, where they were asked for."""
    work = room.workload
    if work is None:
        return []
    more = f", {work.samples} samples each" if work.samples > 1 else ""
    shared = f"; shared prefix {format_bytes(work.shared_bytes)}, held once" if work.shared_bytes else ""
    lines = [
        f"lengths {work.lengths}{more}: mean {work.mean_tokens:,.0f} tokens, "
        f"{format_bytes(int(work.mean_request_bytes))} a request{shared}"
    ]
    if work.limited_by != "kv cache":
        return [*lines, f"requests that fit: {work.requests:,}; every slot is as large as the longest request"]
    spread = work.requests_high != work.requests
    high = f" (to {work.requests_high:,})" if spread else ""
    high95 = f" (to {work.requests_p95_high:,})" if spread else ""
    lines.append(
        f"requests that fit: {work.requests:,}{high} on average, {work.requests_p95:,}{high95} with 95% probability"
    )
    return lines


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


def engine_lines(plan: Plan) -> list[str]:
    """The engine, its options and what it would report itself."""
    engine = plan.engine
    if engine is None:
        return []
    formats = ", ".join(f"{role} {option}" for role, option in engine.formats.items())
    lines = [f"{engine.title} {engine.version}" + (f": {formats}" if formats else "")]
    options = ", ".join(f"{name} {_option(value)}" for name, value in engine.options.items() if value is not None)
    if options:
        lines.append(f"options: {options}")
    return lines + [f"{f.name}: {_option(f.value)}" for f in engine.figures]


def launch_lines(plan: Plan) -> list[str]:
    """The command, and what is stored and multiplied."""
    launch = plan.engine.launch if plan.engine else None
    if launch is None:
        return []
    stored = ", ".join(f"{role} {spelling}" for role, spelling in launch.storage.items())
    lines = [launch.text]
    if stored:
        lines.append(f"stored: {stored}; multiplied: {launch.compute or 'not known'}")
    return lines


def _option(value: int | float | bool | str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


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
