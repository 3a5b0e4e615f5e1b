"""A recommendation on a terminal or in a pipe; every figure comes from the recommendation."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.recommend.advise import name
from kvplan.recommend.types import Candidate, Recommendation
from kvplan.report.terminal import QuietConsole
from kvplan.units import format_bytes


def print_recommendation(result: Recommendation, console: QuietConsole | None = None) -> None:
    """Print the choice with its reason, the runner-up, the Pareto set, all one-format candidates, the unranked."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    r = result.request
    engine = f", {r.engine} {r.engine_version}" if r.engine else ""
    wanted = f"{r.concurrency:,} requests x {r.context:,} tokens, tp {r.tp}"
    head = f"{result.model.id} on {result.device.name}{engine}: {wanted}"
    console.print(Text(head, style="bold"))
    console.print(Text(f"recommended: {name(result.recommended)}", style="bold"))
    console.print(Text(f"  {result.recommended.reason}"), soft_wrap=True)
    if result.recommended.launch:
        console.print(Text(f"  {result.recommended.launch}"), soft_wrap=True)
    if result.runner_up is not None:
        console.print(Text(f"runner-up: {name(result.runner_up)}: {result.runner_up.reason}"), soft_wrap=True)
    ranked = [c for c in result.candidates if c.ranked]
    shown = [c for c in ranked if c.pareto or c.k == c.v]
    console.print(_table(shown))
    more = f"{len(ranked) - len(shown)} more pairs are in --json."
    console.print(
        Text(f"ms: decode attention of one step, all layers, predicted. * Pareto set. {more}"), soft_wrap=True
    )
    _print_reasons(console, "why", [c for c in shown if c.k == c.v])
    _print_reasons(console, "unranked", [c for c in result.candidates if not c.ranked and c.k == c.v])
    for note in (*result.notes, f"Quality: {result.quality_basis}."):
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _print_reasons(console: QuietConsole, heading: str, candidates: list[Candidate]) -> None:
    if candidates:
        console.print()
        console.print(Text(heading, style="bold"))
    for c in candidates:
        line = f" - {_own(c, 'k', 'latent') or 'states only'}: {c.requests:,} requests fit; {c.reason}"
        console.print(Text(line), soft_wrap=True)


def _own(c: Candidate, *roles: str) -> str | None:
    """The first of these tensors' formats, in the engine's own words if there is one."""
    return next((c.engine_formats.get(role, f) for role in roles if (f := getattr(c, role))), None)


def _table(candidates: list[Candidate]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    latent = any(c.latent for c in candidates)
    for heading in ("", "latent") if latent else ("", "K", "V"):
        table.add_column(heading, no_wrap=True)
    for heading in ("cache", "requests", "ms", "KL"):
        table.add_column(heading, justify="right", no_wrap=True)
    for c in candidates:
        seconds = c.predicted_attention_seconds
        time = "-" if seconds is None else f"{seconds * 1e3:.2f}"
        kl = "-" if c.kl is None else f"{c.kl:.5f}"
        formats = (_own(c, "latent"),) if latent else (_own(c, "k"), _own(c, "v"))
        cells = ("*" if c.pareto else "", *(f or "-" for f in formats), format_bytes(c.allocated_bytes))
        table.add_row(*(Text(cell) for cell in (*cells, f"{c.requests:,}", time, kl)))
    return table
