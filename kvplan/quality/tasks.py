"""Prompts with an expected answer: what single steps of KL do not show.

A task is scored in one teacher-forced pass over prompt and answer: greedy decoding gives the answer exactly when every
answer token is the most likely one after the tokens before it. So no token need be generated with the quantised cache.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UsageError
from kvplan.quality.report import TaskScore
from kvplan.quality.texts import default_text

SEED = 0
NEEDLE_LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
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
    """Sentences with a number at several depths of another text, asked for at the end, one after the other.

    Each question comes after the answers before it, so that one pass serves all of a length.
    """
    hay = _ids(tokenizer, default_text().content)
    for length in (n for n in NEEDLE_LENGTHS if n <= longest):
        places = chance.sample(PLACES, len(DEPTHS))
        numbers = [str(chance.randrange(10_000, 100_000)) for _ in DEPTHS]
        pairs = list(zip(places, numbers, strict=True))
        needles = [_ids(tokenizer, f"\n\nThe secret number of the {p} is {n}.\n\n") for p, n in pairs]
        questions = [_ids(tokenizer, f"\n\nThe secret number of the {p} is") for p, _ in pairs]
        answers = [_ids(tokenizer, f" {n}") for _, n in pairs]
        room = length - sum(map(len, [*needles, *questions, *answers]))
        cuts = [0, *(int(room * depth) for depth in DEPTHS), room]
        prompt = hay[: cuts[1]]
        for needle, (start, stop) in zip(needles, pairwise(cuts[1:]), strict=True):
            prompt = (*prompt, *needle, *hay[start:stop])
        for question, answer in zip(questions, answers, strict=True):
            prompt = (*prompt, *question)
            yield Task(f"needle {length}", prompt, answer)
            prompt = (*prompt, *answer)


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


def passes(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks by pass: one whose prompt begins with the prompt and answer of the task before is read with it."""
    found: list[list[Task]] = []
    for task in tasks:
        before = found[-1][-1] if found else None
        whole = (*before.prompt, *before.answer) if before else ()
        if before and task.prompt[: len(whole)] == whole:
            found[-1].append(task)
        else:
            found.append([task])
    return found


def matched(best: Sequence[int], answer: Sequence[int]) -> int:
    """Leading tokens of the answer that are the most likely ones."""
    pairs = zip(best, answer, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(answer))


def scores(tasks: Sequence[Task], lengths: Sequence[int]) -> tuple[TaskScore, ...]:
    """One line per kind, from the matched tokens of each task."""
    lines = []
    for kind in dict.fromkeys(task.kind for task in tasks):
        part = [(n, len(t.answer)) for n, t in zip(lengths, tasks, strict=True) if t.kind == kind]
        right, share = sum(n == all_ for n, all_ in part), sum(n for n, _ in part) / len(part)
        lines.append(TaskScore(kind=kind, tasks=len(part), right=right, tokens_mean=share))
    return tuple(lines)


def _ids(tokenizer: Any, text: str, front: bool = False) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=front).input_ids)
