"""A log file as plain lines: encodings, colour codes, progress bars, wrappers and rank tags, read as a stream."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan.errors import InputError

_CHUNK = 1 << 20
LONGEST_LINE = 1 << 16
"""Characters of a line that are looked at; no engine prints its figures in a longer one, config dumps included."""

# Escape sequences as a terminal sends them (CSI, OSC, two characters), as loggers spell the escape character in text,
# and colour codes whose escape character was lost on the way.
_ESCAPE = r"(?:\x1b|\\x1b|\\u001b|\\033|#033|\^\[)"
_COLOUR = re.compile(
    rf"{_ESCAPE}\[[0-?]*[ -/]*[@-~]|{_ESCAPE}\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_]|\x1b\([A-Z0-9]"
    r"|\[\d{1,3}(?:;\d{1,3})*m"
)
_MAYBE_COLOUR = re.compile(r"\x1b|\[\d[\d;]*m|\\x1b|\\u001b|\\033|#033|\^\[")

# vLLM tags its processes in round brackets; SGLang its ranks in square ones, after the time.
_PROCESS = re.compile(
    r"\((APIServer|EngineCore|VllmWorkerProcess|VllmWorker|Worker|Ray\w*|raylet|pid=)(?:_?([A-Z0-9_]*))?[^()]*?\)"
)
_VLLM_RANK = re.compile(r"\brank=(\d+)")
_PARTS = re.compile(r"(DP|PP|TP|EP|CP|PCP|DCP)(\d+)")
_BRACKETS = re.compile(r"\[(?:[\dT :.,/Z+-]* )?((?:(?:DP|PP|ATTN_CP|CP|TP|EP|MOE_DP)\d+[ ,]?)+)\]")
_MPI = re.compile(r"\[RANK (\d+)\]|^\[\d+,(\d+)\]<std(?:out|err)>")
_TAG_REACH = 240
"""Rank tags stand at the start of a line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line without codes.

    Attributes:
        number: in the file, from 1; the pieces of a progress bar share one.
        text: as printed, colour codes removed.
        rank: `TP1`, `DP0 TP1`, `worker 2` ...; empty without a tag.
        front: whether the tag is that of a server process in front of the engine, which holds no model.
        last: whether the file ends here, inside the line.
    """

    number: int
    text: str
    rank: str = ""
    front: bool = False
    last: bool = False


def read_lines(path: Path, hints: tuple[str, ...] = ("",)) -> Iterator[Line]:
    """The lines of a log file that have one of the hints in them; without hints, all.

    Raises:
        InputError: no such file, not readable, or no text.
    """
    ranks = _Ranks()
    number = 0
    for block in _blocks(path):
        # A server's log is mostly about requests: blocks without any hint are only counted.
        if not _any_in(hints, clean_codes(block)) and '{"' not in block:
            number += block.count("\n")
            continue
        lines = block.split("\n")
        # Only the last line of a file can lack its end.
        cut = lines.pop()
        for raw in (*lines, *([cut] if cut else [])):
            number += 1
            for piece in raw.split("\r"):
                text = clean(piece)
                if text and not text.isspace() and _any_in(hints, text):
                    line = ranks.line(number, text)
                    yield replace(line, last=True) if raw is cut else line


def _any_in(hints: tuple[str, ...], text: str) -> bool:
    return any(hint in text for hint in hints)


def clean(text: str) -> str:
    """A line without colour codes and without the JSON that container runtimes wrap it in."""
    text = text[:LONGEST_LINE]
    if text.lstrip().startswith("{"):
        text = _unwrapped(text)
    return clean_codes(text)


def clean_codes(text: str) -> str:
    """A text without terminal codes."""
    return _COLOUR.sub("", text) if _MAYBE_COLOUR.search(text) else text


def _unwrapped(text: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if isinstance(body, dict):
        for key in ("log", "message", "msg", "MESSAGE", "textPayload"):
            if isinstance(body.get(key), str):
                return str(body[key]).strip("\r\n")
    return text


class _Ranks:
    """Names ranks; processes that tell only their id become `worker 1`, `worker 2`, so that no id is kept."""

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}

    def line(self, number: int, text: str) -> Line:
        head = text[:_TAG_REACH]
        if match := _BRACKETS.search(head):
            return Line(number, text, " ".join(match[1].replace(",", " ").split()))
        if match := _MPI.search(head):
            return Line(number, text, f"rank {match[1] or match[2]}")
        tags = list(_PROCESS.finditer(head))
        if not tags:
            return Line(number, text)
        front = all(tag[1] == "APIServer" for tag in tags)
        found = [part for tag in tags if tag[1] != "APIServer" for part in self._names(tag)]
        return Line(number, text, " ".join(dict.fromkeys(found)), front)

    def _names(self, tag: re.Match[str]) -> list[str]:
        process, tail = tag[1], tag[2] or ""
        if parts := _PARTS.findall(tail):
            # Expert-parallel ranks are the same processes again.
            return [kind + number for kind, number in parts if kind != "EP"]
        if rank := _VLLM_RANK.search(tag[0]):
            return [f"TP{rank[1]}"]
        if process == "EngineCore":
            return [f"DP{tail}"] if tail.isdigit() else []
        if process == "raylet":
            return []
        return [self._workers.setdefault(tag[0], f"worker {len(self._workers) + 1}")]


def _blocks(path: Path) -> Iterator[str]:
    """The text in pieces of whole lines, each line with its end."""
    try:
        with path.open("rb") as file:
            chunk = file.read(_CHUNK)
            decoder = codecs.getincrementaldecoder(_encoding(chunk))("replace")
            kept = ""
            while chunk:
                whole, end, rest = (kept + decoder.decode(chunk)).rpartition("\n")
                if end:
                    yield whole + end
                # A line without an end must not fill the memory.
                kept = rest[:LONGEST_LINE] if len(rest) > _CHUNK else rest
                chunk = file.read(_CHUNK)
            kept += decoder.decode(b"", final=True)
            if kept:
                yield kept
    except OSError as error:
        raise InputError(
            f"log file cannot be read: {error.strerror or 'unknown reason'}", "give the path of a text file"
        ) from None


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _encoding(first: bytes) -> str:
    """UTF-8 unless a byte order mark or the zero bytes of plain letters say UTF-16."""
    for mark, name in _MARKS:
        if first.startswith(mark):
            return name
    sample = first[:4096]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = max(len(sample) // 2, 1)
    if even + odd:
        if odd > 0.4 * half and even < 0.1 * half:
            return "utf-16-le"
        if even > 0.4 * half and odd < 0.1 * half:
            return "utf-16-be"
        raise _no_text()
    strange = sum(byte < 32 and byte not in (7, 8, 9, 10, 12, 13, 27) for byte in sample)
    if strange > 0.05 * len(sample) or not _mostly_utf8(sample):
        raise _no_text()
    return "utf-8"


def _mostly_utf8(sample: bytes) -> bool:
    """Whether few bytes are no UTF-8: a log may hold stray ones, a compressed file is full of them."""
    text = sample.decode("utf-8", "replace")
    return text.count("�") <= 0.2 * max(len(text), 1)


def _no_text() -> InputError:
    return InputError("the log is no text file", "unpack it first if it is compressed; UTF-8 and UTF-16 are read")
