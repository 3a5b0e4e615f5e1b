"""The starts of one engine in a log: where one ends and the next begins, and which rank a line is of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvplan.reconcile.clean import Line
from kvplan.reconcile.figures import header_value, printed_figures
from kvplan.reconcile.names import model_name, settings
from kvplan.reconcile.rules import LogFormat, Rule
from kvplan.reconcile.types import Printed

DRAFT = "draft"
"""The rank of figures that belong to a draft model."""


@dataclass
class Start:
    """One start while it is being read."""

    printed: list[Printed] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    model: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    label: str = ""
    draft: bool = False
    cut: bool = False

    def complete(self, log: LogFormat) -> bool:
        """Whether it says how large the cache is."""
        return any(p.name in log.capacity for p in self.printed)


class Reader:
    """The starts of one engine."""

    def __init__(self, log: LogFormat) -> None:
        self.log = log
        self.starts = [Start()]
        self.seen = 0
        self.signs = 0

    @property
    def complete(self) -> list[Start]:
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
        of = groups.get("of") or (start.label if rule.labelled else "")
        figures = printed_figures(self.log.figures, groups, line.number, self._rank(line), of)
        if any(p.name in self.log.once and self._again(p) for p in figures):
            self._split()
        for figure in figures:
            self._add(figure)
        self.starts[-1].cut |= bool(figures) and line.last and match.end() == len(line.text) and line.text[-1].isdigit()
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
        new = Start()
        if keep:
            new = Start(options=dict(old.options), version=old.version, model=old.model, header=dict(old.header))
        self.starts.append(new)

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
        key, value = groups.get("h_key"), groups.get("h_value")
        if key and value and not start.draft and header_value(key, value):
            start.header[key] = value
        if rule.keys:
            start.options |= settings(line.text, rule.keys)
