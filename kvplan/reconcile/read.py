"""From the lines of a log to one start of one engine."""

from __future__ import annotations

from collections.abc import Iterable

from kvplan.errors import InputError
from kvplan.reconcile import llamacpp, lmdeploy, ollama, sglang, trtllm, vllm
from kvplan.reconcile.clean import Line
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.starts import Reader
from kvplan.reconcile.types import StartUp

FORMATS: tuple[LogFormat, ...] = tuple(module.FORMAT for module in (vllm, sglang, llamacpp, trtllm, lmdeploy, ollama))
"""Every engine whose log is read."""

HINTS = tuple(dict.fromkeys(rule.hint for log in FORMATS for rule in log.rules))
"""What a line must have in it to be of use."""


def read_start(lines: Iterable[Line]) -> StartUp:
    """The last complete start in a log.

    Raises:
        InputError: no engine's lines, two engines', or none that says how large the cache is.
    """
    readers = [Reader(log) for log in FORMATS]
    for line in lines:
        for reader in readers:
            reader.read(line)
    return _start_up(_chosen(readers))


def _chosen(readers: list[Reader]) -> Reader:
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


def _start_up(reader: Reader) -> StartUp:
    """The last complete start, with what the log lacks."""
    log, starts = reader.log, [start for start in reader.starts if start.printed]
    complete = [start for start in starts if start.complete(log)]
    start = complete[-1]
    notes = []
    if len(starts) > 1:
        notes.append(f"The log has {len(starts)} starts; the last complete one is used.")
    if start.cut:
        notes.append("The log ends with a number and without an end of line: its last figure may be cut.")
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
        header=tuple(start.header.items()),
    )


def format_of(engine: str) -> LogFormat:
    """The log of an engine."""
    return next(log for log in FORMATS if log.engine == engine)
