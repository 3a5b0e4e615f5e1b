"""Engines on a terminal: the list, and one engine in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.report.terminal import QuietConsole, bullet


def print_engines(engines: Sequence[Mapping[str, Any]]) -> None:
    """One line per engine: versions, newest first, and the values of its cache-dtype option."""
    table = _table("engine", "versions", "cache formats")
    for e in engines:
        versions = ", ".join(v["name"] for v in e["versions"])
        _row(table, e["name"], versions, ", ".join(f["option"] for f in e["formats"]))
    console = _console()
    console.print(table)
    console.print(Text("kvplan engines NAME shows an engine's options and block rules with their sources."))


def print_engine(e: Mapping[str, Any]) -> None:
    """Versions, formats, options and rules of one engine."""
    console = _console()
    console.print(Text(f"{e['title']} {e['default_version']} (--engine {e['name']})", style="bold"))
    formats = _table("format", "stores", "needs")
    for f in e["formats"]:
        stores = ", ".join(f"{role} {spelling}" for role, spelling in f["stores"].items())
        since = [f"since {f['since']}"] if f["since"] else []
        until = [f"until {f['until']}"] if f["until"] else []
        _row(formats, " = ".join((f["option"], *f["aliases"])), stores, "; ".join((*since, *until, f["needs"])))
    sections: dict[str, list[str] | Table] = {
        "Versions": [_sourced(v["name"] + (f": {v['note']}" if v["note"] else ""), v["source"]) for v in e["versions"]],
        f"Cache formats ({', '.join(e['flag'])}; K and V {'apart' if e['k_and_v_apart'] else 'together'})": formats,
        "Options (--engine-option NAME=VALUE)": [_option(o) for o in e["options"]],
        "Rules": [_sourced(f"{r['name']}: {r['text']}", r["source"]) for r in e["rules"]],
    }
    for heading, content in sections.items():
        if not content:
            continue
        console.print()
        console.print(Text(heading, style="bold"))
        if isinstance(content, Table):
            console.print(content)
            continue
        for line in content:
            console.print(Text(bullet(line, console.width)), soft_wrap=True)


def _option(o: Mapping[str, Any]) -> str:
    value = o["default"]
    default = "worked out" if value is None else ("on" if value else "off") if isinstance(value, bool) else value
    kind = " | ".join(o["choices"]) or {"bool": "on | off"}.get(o["kind"], o["kind"])
    return _sourced(f"{o['name']} ({kind}; default {default}): {o['text']}", o["source"])


def _sourced(text: str, source: str) -> str:
    return f"{text} [{source}]" if source else text


def _console() -> QuietConsole:
    return QuietConsole(highlight=False, markup=False, emoji=False)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))
