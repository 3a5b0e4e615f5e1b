"""What fits, and what an engine does, as lines; every number is the plan's own."""

from __future__ import annotations

from kvplan.breakdown import leaves
from kvplan.plan import Plan
from kvplan.plan.answers import Capacity
from kvplan.units import format_bytes


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
