"""Prompts with an expected answer: what single steps of KL do not show.

A task is scored in one teacher-forced pass over prompt and answer: greedy decoding gives the answer exactly when every
answer token is the most likely one after the tokens before it. So no token need be generated with the quantised cache.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UsageError
from kvplan.quality.report import TaskScore
from kvplan.quality.texts import default_text

SEED = 0
NEEDLE_LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = (0.1, 0.5, 0.9)
ADDITIONS, CONTINUATIONS, CONTINUED = 24, 8, 64
PROMPT_TOKENS = 448
"""Longer than any usual residual, so that most rows are stored."""
PLACES = ("harbour", "library", "station", "theatre", "bakery", "museum", "garden", "castle")


@dataclass(frozen=True)
class Task:
    """Token ids of a prompt and of its answer."""

    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_tasks(path: Path) -> list[tuple[str, str, str]]:
    """(kind, prompt, expected) of a user's file, one JSON object a line.

    Raises:
        InputError: naming the line.
    """
    hint = 'each line: {"prompt": "...", "expected": "...", "kind": "..."}'
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text", hint) from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            words = tuple(entry[key] for key in ("kind", "prompt", "expected"))
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}, line {number}: not an object with prompt, expected and kind", hint) from None
        if set(entry) != {"kind", "prompt", "expected"} or not all(isinstance(w, str) and w for w in words):
            raise InputError(f"{path}, line {number}: prompt, expected and kind are texts that are not empty", hint)
        found.append(words)
    if not found:
        raise InputError(f"{path} has no tasks", hint)
    return found


def own_tasks(tokenizer: Any, texts: Iterable[tuple[str, str, str]], most: int | None) -> list[Task]:
    """Tasks of a user's file as tokens.

    Raises:
        UsageError: longer than the model's positions.
    """
    made = [Task(kind, _ids(tokenizer, p, front=True), _ids(tokenizer, e)) for kind, p, e in texts]
    for i, task in enumerate(made, 1):
        if most is not None and len(task.prompt) + len(task.answer) > most:
            size = len(task.prompt) + len(task.answer)
            raise UsageError(f"task {i} has {size:,} tokens, the model {most:,} positions", "leave it out")
    return made


def built_in(tokenizer: Any, longest: int) -> list[Task]:
    """Needles at the lengths up to `longest` and chained additions; the same ones every time."""
    chance = random.Random(SEED)
    return [*_needles(tokenizer, chance, longest), *_additions(tokenizer, chance)]


def prompts(tokenizer: Any) -> list[tuple[int, ...]]:
    """Beginnings of a text for greedy decoding to go on with."""
    text = default_text()
    ids = _ids(tokenizer, text.content)
    step = len(ids) // CONTINUATIONS
    return [tuple(ids[i * step : i * step + PROMPT_TOKENS]) for i in range(CONTINUATIONS)]


def _needles(tokenizer: Any, chance: random.Random, longest: int) -> Iterator[Task]:
    """A sentence with a number somewhere in other text, asked for at the end."""
    hay = _ids(tokenizer, default_text().content)
    for length in (n for n in NEEDLE_LENGTHS if n <= longest):
        for depth in DEPTHS:
            place, number = chance.choice(PLACES), str(chance.randrange(10_000, 100_000))
            needle = _ids(tokenizer, f"\n\nThe secret number of the {place} is {number}.\n\n")
            question = _ids(tokenizer, f"\n\nThe secret number of the {place} is")
            answer = _ids(tokenizer, f" {number}")
            room = length - len(needle) - len(question) - len(answer)
            before = int(room * depth)
            prompt = (*hay[:before], *needle, *hay[before:room], *question)
            yield Task(f"needle {length}", prompt, answer)


def _additions(tokenizer: Any, chance: random.Random) -> Iterator[Task]:
    """Sums that each go on from the one before; the answer is the last one."""
    for _ in range(ADDITIONS):
        total, lines = chance.randrange(2, 30), []
        for _ in range(6):
            other = chance.randrange(2, 10)
            lines.append(f"{total} + {other} = {total + other}")
            total += other
        chain = "\n".join(lines)
        prompt, answer = chain.rsplit("= ", 1)
        yield Task("addition", _ids(tokenizer, prompt + "="), _ids(tokenizer, f" {answer}"))


def matched(best: Sequence[int], answer: Sequence[int]) -> int:
    """Leading tokens of the answer that are the most likely ones."""
    pairs = zip(best, answer, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer))


def scores(tasks: Sequence[Task], best: Callable[[Task], Sequence[int]]) -> tuple[list[int], tuple[TaskScore, ...]]:
    """Matched tokens of each task, and one line per kind."""
    lengths = [matched(best(task), task.answer) for task in tasks]
    lines = []
    for kind in dict.fromkeys(task.kind for task in tasks):
        part = [(n, len(t.answer)) for n, t in zip(lengths, tasks, strict=True) if t.kind == kind]
        right, share = sum(n == all_ for n, all_ in part), sum(n for n, _ in part) / len(part)
        lines.append(TaskScore(kind=kind, tasks=len(part), right=right, tokens_mean=share))
    return lengths, tuple(lines)


def _ids(tokenizer: Any, text: str, front: bool = False) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=front).input_ids)
