"""From the lines of a log to one start of one engine: which engine, which start, which rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from kvplan.errors import InputError
from kvplan.reconcile import llama_cpp, lmdeploy, ollama, sglang, tensorrt_llm, vllm
from kvplan.reconcile.clean import Line
from kvplan.reconcile.names import model_name, settings
from kvplan.reconcile.rules import Figure, LogFormat, Rule
from kvplan.reconcile.types import Printed, StartUp

FORMATS: tuple[LogFormat, ...] = tuple(
    module.FORMAT for module in (vllm, sglang, llama_cpp, tensorrt_llm, lmdeploy, ollama)
)
"""Every engine whose log is read."""

_UNITS = {"KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB", "B": "bytes"}
DRAFT = "draft"
"""The rank of figures that belong to a draft model."""


@dataclass
class _Start:
    """One start while it is being read."""

    printed: list[Printed] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    model: str | None = None
    label: str = ""
    draft: bool = False

    def complete(self, log: LogFormat) -> bool:
        """Whether it says how large the cache is."""
        return any(p.name in log.capacity for p in self.printed)


class _Reader:
    """The starts of one engine."""

    def __init__(self, log: LogFormat) -> None:
        self.log = log
        self.starts = [_Start()]
        self.seen = 0
        self.signs = 0

    @property
    def complete(self) -> list[_Start]:
        """The starts that say how large the cache is."""
        return [start for start in self.starts if start.complete(self.log)]

    def read(self, line: Line) -> None:
        """Take what a line says."""
        for rule in self.log.rules:
            if rule.hint in line.text and (match := rule.regex.search(line.text)):
                self.seen += 1
                self.signs += rule.hint in self.log.signs
                self._take(rule, match, line)

    def _take(self, rule: Rule, match: re.Match[str], line: Line) -> None:
        rank = self._rank(line)
        if rule.effect in ("start", "model"):
            self._begin(rule, rank, line.front)
        start, groups = self.starts[-1], match.groupdict()
        if rule.effect == "draft":
            start.draft, start.label = True, ""
        if rule.effect == "label":
            start.label = groups["of"]
            return
        figures = self._figures(rule, groups, line, self._rank(line))
        if any(p.name in self.log.once and self._again(p) for p in figures):
            self._split()
        for figure in figures:
            self._add(figure)
        self._words(rule, groups, line)

    def _rank(self, line: Line) -> str:
        return DRAFT if self.starts[-1].draft and not line.rank else line.rank

    def _begin(self, rule: Rule, rank: str, front: bool) -> None:
        """A new start, if this source has printed a cache in the present one already."""
        names = rule.laid_out or self.log.capacity
        ranks = {p.rank for p in self.starts[-1].printed if p.name in names}
        process = rule.effect == "start"
        # A line of the whole process ends the start of all its ranks.
        if ranks if process and (front or not rank) else ranks & {rank, ""} if process else ranks & {rank}:
            self._next(keep=not process)

    def _next(self, keep: bool) -> None:
        """Begin a start; `keep`: of the same process, so that version, model and settings hold on."""
        old = self.starts[-1]
        self.starts.append(
            _Start(options=dict(old.options), version=old.version, model=old.model) if keep else _Start()
        )

    def _split(self) -> None:
        """A new start whose first line is not in the log: what followed the last capacity line belongs to it."""
        old = self.starts[-1]
        last = max(p.line for p in old.printed if p.name in self.log.capacity)
        self._next(keep=True)
        self.starts[-1].printed = [p for p in old.printed if p.line > last]
        old.printed = [p for p in old.printed if p.line <= last]

    def _again(self, figure: Printed) -> bool:
        return any(
            p.name == figure.name and p.rank == figure.rank and p.line != figure.line for p in self.starts[-1].printed
        )

    def _figures(self, rule: Rule, groups: dict[str, str | None], line: Line, rank: str) -> list[Printed]:
        start = self.starts[-1]
        of = groups.get("of") or (start.label if rule.labelled else "")
        made = []
        for name, text in groups.items():
            spec = self.log.figures.get(name)
            if spec is not None and text is not None:
                value, half = _number(text, spec)
                unit = _UNITS.get(groups.get("unit") or "", groups.get("unit") or "") if spec.unit == "*" else spec.unit
                made.append(Printed(name=name, value=value, unit=unit, half_unit=half, line=line.number, rank=rank,
                                    of=of))  # fmt: skip
        return made

    def _add(self, figure: Printed) -> None:
        printed = self.starts[-1].printed
        if figure.name in self.log.latest:
            key = (figure.name, figure.rank, figure.of)
            printed[:] = [p for p in printed if (p.name, p.rank, p.of) != key]
        printed.append(figure)

    def _words(self, rule: Rule, groups: dict[str, str | None], line: Line) -> None:
        start = self.starts[-1]
        for name, text in groups.items():
            if text is None:
                continue
            if name.startswith("o_") and not (start.draft and not line.rank):
                start.options[name.removeprefix("o_")] = text.removeprefix("torch.")
            elif name == "version":
                start.version = text.removeprefix("v")
            elif name == "model" and not start.draft:
                start.model = model_name(text) or start.model
        if rule.keys:
            start.options |= settings(line.text, rule.keys)


def _number(text: str, spec: Figure) -> tuple[Decimal, Decimal]:
    """A number as printed, and half a unit of its last decimal (a whole unit where decimals are cut off)."""
    plain = text.replace(",", "")
    value = Decimal(plain)
    places = max(len(plain.partition(".")[2]), spec.places)
    if spec.floor:
        return value, Decimal(1).scaleb(-places)
    counted = spec.unit in ("tokens", "blocks", "layers", "slots", "sequences", "streams", "cells", "requests", "bytes")
    return value, Decimal(0) if counted and not places else Decimal(5).scaleb(-places - 1)


_HINTS = re.compile("|".join(re.escape(hint) for hint in dict.fromkeys(r.hint for log in FORMATS for r in log.rules)))


def read_start(lines: Iterable[Line]) -> StartUp:
    """The last complete start in a log.

    Raises:
        InputError: no engine's lines, two engines', or none that says how large the cache is.
    """
    readers = [_Reader(log) for log in FORMATS]
    for line in lines:
        if _HINTS.search(line.text):
            for reader in readers:
                reader.read(line)
    return _start_up(_chosen(readers))


def _chosen(readers: list[_Reader]) -> _Reader:
    """The reader of the engine whose log this is."""
    signed = [r for r in readers if not r.log.wraps or r.signs]
    wrapped = {r.log.wraps for r in signed if r.log.wraps}
    found = [r for r in signed if r.complete and r.log.engine not in wrapped]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(r.log.title for r in found)
        raise InputError(f"the log has capacity lines of {names}", "give the log of one engine at a time")
    seen = sorted((r for r in signed if r.seen and r.log.engine not in wrapped), key=lambda r: -r.seen)
    if seen and (len(seen) == 1 or seen[0].seen > seen[1].seen):
        log = seen[0].log
        raise InputError(f"the log of {log.title} has no capacity line", "looked for: " + "; ".join(log.capacity_lines))
    known = ", ".join(log.title for log in FORMATS)
    looked = "; ".join(log.capacity_lines[0] for log in FORMATS)
    raise InputError(
        f"no start-up line of an engine whose log kvplan reads ({known})", f"looked for, among others: {looked}"
    )


def _start_up(reader: _Reader) -> StartUp:
    """The last complete start, with what the log lacks."""
    log, starts = reader.log, [start for start in reader.starts if start.printed]
    complete = [start for start in starts if start.complete(log)]
    start = complete[-1]
    notes = []
    if len(starts) > 1:
        notes.append(f"The log has {len(starts)} starts; the last complete one is used.")
    if start is not starts[-1]:
        notes.append("The last start ends before its capacity lines; the one before it is used.")
    printed = log.refine(start.printed) if log.refine else start.printed
    names = {p.name for p in printed}
    missing = tuple(line for wanted, line in log.expected if not names & set(wanted))
    return StartUp(
        engine=log.engine,
        title=log.title,
        version=start.version,
        model=start.model,
        printed=tuple(printed),
        options=tuple(sorted(start.options.items())),
        missing=tuple(dict.fromkeys(missing)),
        restarts=len(starts) - 1,
        notes=tuple(notes),
    )
