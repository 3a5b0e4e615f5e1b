"""A recommendation on a terminal or in a pipe; every figure comes from the recommendation."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.recommend.types import Candidate, Choice, Fleet, Recommendation
from kvplan.report.terminal import QuietConsole, bullet, print_sections


def print_recommendation(result: Recommendation, console: QuietConsole | None = None) -> None:
    """Print the choice or what to relax, three results apart, the runner-up, what would change it, the Pareto set."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    r = result.request
    engine = f", {r.engine} {r.engine_version}" if r.engine else ""
    gpus = f"{r.gpus} x " if r.gpus > 1 else ""
    wanted = f"{r.concurrency:,} requests x {r.context:,} tokens, {result.bounds}"
    console.print(
        Text(f"{result.model.id} on {gpus}{result.device.name}{engine}: {wanted}", style="bold"), soft_wrap=True
    )
    if result.recommended is None:
        console.print(Text("recommended: nothing keeps every bound", style="bold"))
    else:
        _choice(console, "recommended", result.recommended)
        print_sections(console, {"Results": list(_results(result.recommended.candidate))})
    if result.runner_up is not None:
        word = "runner-up" if result.recommended else "nearest"
        text = f"{word}: {name(result.runner_up.candidate)}: {result.runner_up.reason}"
        console.print(Text(text), soft_wrap=True)
    print_sections(
        console,
        {
            "To relax, each alone": [x.text for x in result.relax],
            "What would change the answer": list(result.changes),
            "Effects": list(result.warnings),
        },
    )
    console.print()
    console.print(_table(result))
    hidden = len(result.candidates) - len(_shown(result))
    more = f" {hidden} more of the Pareto set that break a bound are in --json." if hidden else ""
    console.print(Text(f"ms: decode attention of one step. * Pareto set.{more}"), soft_wrap=True)
    print_sections(
        console,
        {
            "Not usable here": [f"{option}: {why}" for option, why in result.refused.items()],
            "Notes": list(result.notes),
        },
    )
    if result.recommended:
        console.print()
        console.print(Text("Configuration (--out FILE; kvplan estimate, validate and check take it)", style="bold"))
        console.print(Text(result.recommended.config.rstrip()), soft_wrap=True)


def print_fleet(fleet: Fleet, console: QuietConsole | None = None) -> None:
    """Print a row for each GPU type, then each type's recommendation in a line."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    console.print(Text(f"ranked by {fleet.ranked_by}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    priced = any(row.price_per_hour is not None for row in fleet.rows)
    for heading in ("GPU", "recommended", "requests", "per GPU", *(["price an hour", "per price"] if priced else [])):
        table.add_column(heading, justify="left" if heading in ("GPU", "recommended") else "right", overflow="fold")
    for row in fleet.rows:
        choice = row.recommendation.recommended
        cells = [row.gpu, name(choice.candidate) if choice else "nothing keeps every bound"]
        cells += [f"{row.requests:,}", f"{row.requests_per_gpu:,.1f}"]
        if priced:
            known = row.price_per_hour is not None and row.requests_per_price is not None
            cells += [f"{row.price_per_hour:g}", f"{row.requests_per_price:,.1f}"] if known else ["-", "-"]
        table.add_row(*map(Text, cells))
    console.print(table)
    for row in fleet.rows:
        found = row.recommendation
        why = found.recommended.reason if found.recommended else "; ".join(x.text for x in found.relax)
        console.print(Text(bullet(f"{row.gpu}: {why}", console.width)), soft_wrap=True)
    for note in fleet.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def name(c: Candidate) -> str:
    """The formats in the engine's words or as spellings, layers kept apart, and the layout where it is not one rank."""
    found = {role: c.engine_formats.get(role, f) for role in ("k", "v", "latent") if (f := getattr(c, role))}
    text = ", ".join(f"{role.upper() if len(role) == 1 else role} {f}" for role, f in found.items()) or "states only"
    text += f" (layers {'; '.join(c.layers)})" if c.layers else ""
    s = c.layout
    if s.tp * s.dp * s.dcp == 1:
        return text
    inside = " inside" if s.dp_attention else ""
    return f"{text}, tp {s.tp} dp {s.dp}{inside}" + (f" dcp {s.dcp}" if s.dcp > 1 else "")


def _choice(console: QuietConsole, word: str, choice: Choice) -> None:
    console.print(Text(f"{word}: {name(choice.candidate)}", style="bold"), soft_wrap=True)
    console.print(Text(f"  {choice.reason}"), soft_wrap=True)
    if choice.launch:
        for line in choice.launch.splitlines():
            console.print(Text(f"  {line}"), soft_wrap=True)


def _results(c: Candidate) -> Iterator[str]:
    """Capacity, attention latency, whole step: never mixed. Then quality and support."""
    room, time, step = c.capacity, c.attention, c.step
    more = f"{room.gain:.2f}x the tokens per byte of 16 bit"
    yield f"capacity: {room.requests:,} requests, {room.tokens:,} tokens; {more}"
    gain = f", {time.gain:.2f}x as fast as 16 bit" if time.gain else ""
    yield "attention latency: " + (
        time.basis if time.seconds is None else f"{time.seconds * 1e3:.2f} ms a step{gain} ({time.basis})"
    )
    if step.seconds and step.tokens_per_second:
        low, high = step.seconds
        slow, fast = step.tokens_per_second
        yield (
            f"end-to-end: {low * 1e3:.1f} to {high * 1e3:.1f} ms a step, {slow:,.0f} to {fast:,.0f} tokens a second "
            f"({step.basis})"
        )
    else:
        yield f"end-to-end: {step.basis}; no step is shorter than {step.floor_seconds * 1e3:.2f} ms"
    if c.quality:
        q = c.quality
        where = f"{q.low:.4f} to {q.high:.4f}" if q.kl else "exact"
        yield f"quality: KL {q.kl:.5f} ({where}), top-1 {q.top1:.1%}: {q.evidence} ({q.source})"
    yield f"runs on: {c.support}"


def _table(result: Recommendation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    layouts = result.request.gpus > 1
    for heading in ("", "choice", *(["tp x dp"] if layouts else [])):
        table.add_column(heading, overflow="fold")
    for heading in ("requests", "ms", "KL"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    table.add_column("lost by", no_wrap=True)
    for c in _shown(result):
        table.add_row(*map(Text, _cells(c, layouts)))
    return table


def _shown(result: Recommendation) -> list[Candidate]:
    """Those that break no bound but room, and those with one format throughout."""
    return [c for c in result.candidates if set(map(_short, c.obstacles)) <= {"room"} or (c.k == c.v and not c.layers)]


_SHORT = {"it": "room", "KL": "KL", "top-1": "top-1", "a": "slow", "2": "2 bits", "3": "3 bits"}
_FROM = {
    "measured on this model": "measured",
    "predicted from this model's tensors": "tensors",
    "from another model": "another",
    "format theory only": "theory",
}


def _short(obstacle: str) -> str:
    return _SHORT.get(obstacle.split()[0], "not known")


def _cells(c: Candidate, layouts: bool) -> list[str]:
    formats = dict.fromkeys(c.engine_formats.get(role, f) for role in ("k", "v", "latent") if (f := getattr(c, role)))
    choice = "\n".join([*formats, *c.layers]) or "states only"
    seconds = c.attention.seconds
    time = "-" if seconds is None else f"{seconds * 1e3:.2f}"
    kl = "-" if c.quality is None else f"{c.quality.kl:.5f}"
    s = c.layout
    place = [f"{s.tp} x {s.dp}" + (f" dcp {s.dcp}" if s.dcp > 1 else "")] if layouts else []
    known = "-" if c.quality is None else _FROM[c.quality.evidence] if c.quality.kl else "exact"
    return [
        "*" if c.pareto else "",
        choice,
        *place,
        f"{c.capacity.requests:,}",
        time,
        kl,
        known,
        ", ".join(map(_short, c.obstacles)),
    ]
