"""Texts that every Python has, files of the user, and the tokens taken from them."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UsageError
from kvplan.quality.report import TextInfo


@dataclass(frozen=True)
class Text:
    """A text with its name; `first_token` is where reading starts unless asked otherwise."""

    name: str
    content: str
    first_token: int = 0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def default_text() -> Text:
    """Python's language reference (`pydoc_data.topics`), English prose with code; from its middle."""
    from pydoc_data import topics

    return Text("pydoc_data.topics (ships with Python)", "\n".join(topics.topics.values()), 20_000)


def default_calibration() -> Text:
    """Another text than the measured one: the source of `argparse`."""
    spec = importlib.util.find_spec("argparse")
    assert spec is not None and spec.origin is not None
    return Text("argparse.py (ships with Python)", Path(spec.origin).read_text(encoding="utf-8"))


def read_text(path: Path) -> Text:
    """A user's file.

    Raises:
        InputError: not there, not readable, not UTF-8.
    """
    try:
        return Text(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "give a text file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text", "give a plain text file in UTF-8") from None


def tokenise(tokenizer: Any, text: Text, count: int, first: int | None = None) -> tuple[list[int], TextInfo]:
    """`count` token ids of the text, after what the tokenizer itself puts in front (a BOS, or nothing).

    Args:
        count: ids wanted; one more than the positions that are scored.
        first: tokens of the text to leave out, default `text.first_token`.

    Raises:
        UsageError: the text is too short.
    """
    front = list(tokenizer("").input_ids)
    ids = list(tokenizer(text.content, add_special_tokens=False).input_ids)
    start = text.first_token if first is None else first
    taken = [*front, *ids[start : start + count - len(front)]]
    if len(taken) < count:
        left = max(len(front) + len(ids) - start, 0)
        raise UsageError(
            f"{text.name} has {left:,} tokens from token {start:,} on, {count:,} are needed",
            f"use --tokens {left - 1}" if left > 2 else "give a longer text or a smaller --first-token",
        )
    return taken, TextInfo(name=text.name, sha256=text.sha256, first_token=start, tokens=count)
