"""Prompts with answers: files, built-in ones, scores; and what greedy decoding itself would have written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode, InputError, UsageError
from kvplan.quality.attention import identity
from kvplan.quality.probe import answered, continuations, run_tasks
from kvplan.quality.run import quantising
from kvplan.quality.stored import Codec
from kvplan.quality.tasks import Task, built_in, matched, own_tasks, passes, read_tasks


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> tuple[Any, Any]:
    from kvplan.quality import models

    source = models.find(str(tiny))
    return models.load_model(source, "fp32", "cpu"), models.load_tokenizer(source)


def test_a_task_is_right_when_greedy_decoding_gives_the_answer(loaded: tuple[Any, Any]) -> None:
    """The answer is what the model writes; one other token makes it wrong from there on."""
    model, tokenizer = loaded
    prompt = tuple(tokenizer("The answer").input_ids)
    [task] = continuations(model, [prompt])
    assert len(task.answer) == 64
    other = (*task.answer[:5], (task.answer[5] + 1) % 256, *task.answer[6:])
    lengths, lines = run_tasks(model, [task, Task("x", prompt, other)], identity)
    assert lengths == [64, 5]
    assert [(t.kind, t.tasks, t.right, t.tokens_mean) for t in lines] == [("greedy", 1, 1, 64), ("x", 1, 0, 5)]
    assert answered(model, [task, Task("x", prompt, other)])[0] == (task,)


def test_coarse_formats_part_earlier(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    tasks = continuations(model, [tuple(tokenizer(t).input_ids) for t in ("One", "Two two", "Three three three")])
    steps = []
    for f in ("fp32", "int8:group/32", "int2"):
        steps.append(sum(run_tasks(model, tasks, quantising([Codec(r, f, "bf16") for r in ("k", "v")]))[0]))
    assert steps[0] == 3 * 64 and steps[0] >= steps[1] > steps[2]


def test_the_built_in_ones_are_fixed(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    tasks = built_in(tokenizer, 1024)
    assert tasks == built_in(tokenizer, 1024)
    needles = [t for t in tasks if t.kind.startswith("needle")]
    assert [t.kind for t in needles] == [*["needle 512"] * 5, *["needle 1024"] * 5]
    assert [[len(t.prompt) + len(t.answer) for t in p][-1] for p in passes(needles)] == [512, 1024]
    for t in needles:
        prompt, answer = tokenizer.decode(t.prompt), tokenizer.decode(t.answer)
        question = prompt[prompt.rindex("The secret") :]
        assert prompt.count(question + answer + ".") == 1 and prompt.count(question) == 2
    for t in (t for t in tasks if t.kind == "addition"):
        *_, last = tokenizer.decode(t.prompt).splitlines()
        assert sum(int(n) for n in last.removesuffix("=").split("+")) == int(tokenizer.decode(t.answer))


def test_one_pass_serves_tasks_that_go_on_from_each_other(loaded: tuple[Any, Any]) -> None:
    """As each alone, with a residual too; a task left out of the middle does not matter."""
    model, _ = loaded
    chance = random.Random(0)
    prompt, tasks = tuple(chance.randrange(256) for _ in range(90)), []
    visitor = quantising([Codec(r, "int4:group/32,asym,recent=32", "bf16") for r in ("k", "v")])
    for _ in range(4):
        answer = continuations(model, [prompt])[0].answer[:6]
        tasks.append(Task("x", prompt, answer))
        prompt = (*prompt, *answer, *(chance.randrange(256) for _ in range(7)))
    for some in (tasks, [*tasks[:1], *tasks[2:]]):
        assert [len(p) for p in passes(some)] == [len(some)]
        together = run_tasks(model, some, visitor)[0]
        assert together == [run_tasks(model, [t], visitor)[0][0] for t in some] and sum(together) > 0
    assert [len(p) for p in passes([tasks[0], Task("y", (1, 2), (3,)), tasks[1]])] == [1, 1, 1]


def test_matched() -> None:
    assert [matched(b, (1, 2, 3)) for b in ((1, 2, 3), (1, 0, 3), (0, 2, 3))] == [3, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no tasks"),
        ('{"prompt": "a", "expected": "b", "kind": "c"}\n{', "line 2: not an object"),
        ("[1]", "line 1: not an object"),
        ('{"prompt": "a", "kind": "c"}', "line 1: not an object"),
        ('{"prompt": "a", "expected": "", "kind": "c"}', "are texts that are not empty"),
        ('{"prompt": "a", "expected": "b", "kind": "c", "x": 1}', "are texts that are not empty"),
    ],
)
def test_files_that_are_no_tasks(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InputError) as caught:
        read_tasks(tmp_path / "t.jsonl")
    assert message in caught.value.message


def test_a_task_beyond_the_model_is_refused(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(UsageError, match="12 tokens, the model 10"):
        own_tasks(loaded[1], [("k", "ten tokens", "no")], 10)


def test_a_report_with_own_tasks(tiny: Path, prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    rows = [{"prompt": "Hello there", "expected": "ab", "kind": f"k{n}"} for n in (0, 1)]
    file.write_text("\n".join(json.dumps(r) for r in rows))
    base = ["quality", str(tiny), "--text", str(prose), "--tokens", "32", "--no-parts", "--json"]
    assert main([*base, "--kv", "int8", "--kv", "int2", "--tasks", str(file)]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert {t["kind"]: t["tasks"] for t in found["baseline"]["tasks"]} == {"k0": 1, "k1": 1}
    assert found["request"]["tasks_sha256"] and found["formats"][0]["format"] == "int8"
    assert "int2: not verified: retrieval, math, this model" in found["notes"]
    assert not any("int8" in n for n in found["notes"])
