"""Answers to the inverse questions as lines; no arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from kvplan.plan.solve import Solution
from kvplan.report.terminal import QuietConsole


def solution_lines(s: Solution) -> Iterator[str]:
    """One line per question."""
    yield f"{s.model} on {s.gpu}" + (f", {s.engine}" if s.engine else "")
    yield f"users: {_range(s.users, s.users_high)} requests of {s.context:,} tokens fit"
    one = "1 request" if s.batch == 1 else f"each of {s.batch:,} requests"
    yield f"context: {one} may have {_range(s.longest_context, s.longest_context_high)} tokens"
    wanted = f"{s.batch:,} x {s.context:,} tokens"
    ways = dict.fromkeys(way for way in (s.fewest_gpus_without_pipeline, s.fewest_gpus) if way)
    need = " or ".join(f"{way.gpus} (tp {way.tp}, pp {way.pp})" for way in ways)
    yield f"GPUs: {wanted} need {need or 'more than any layout that kvplan tries here'}"
    share = s.share_name or "share"
    yield f"memory: {wanted} fit from {share} {s.least_share:g}" if s.least_share else f"memory: no {share} is enough"
    yield f"limited by: {s.limited_by}"
    for note in s.notes:
        yield f"note: {note}"


def print_solution(found: Solution, console: QuietConsole | None = None) -> None:
    """Print the answers."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    for line in solution_lines(found):
        console.print(Text(line), soft_wrap=True)


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
