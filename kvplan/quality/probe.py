"""Tasks through the model, with an untouched cache and with a quantised one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kvplan.quality.attention import NAME, Visitor, identity, visiting
from kvplan.quality.report import TaskScore
from kvplan.quality.tasks import CONTINUED, Task, matched, passes, scores


def run_tasks(model: Any, tasks: Sequence[Task], visitor: Visitor) -> tuple[list[int], tuple[TaskScore, ...]]:
    """Leading right tokens of every task's answer, and a line per kind."""
    lengths: list[int] = []
    for together in passes(tasks):
        last = together[-1]
        ids = torch.tensor([[*last.prompt, *last.answer[:-1]]], device=model.device)
        # The token after the last of a prompt is the first of its answer.
        first = len(together[0].prompt) - 1
        with torch.inference_mode(), visiting(visitor):
            best = model(ids, use_cache=False, logits_to_keep=ids.shape[1] - first).logits[0].argmax(-1).tolist()
        for task in together:
            start = len(task.prompt) - 1 - first
            lengths.append(matched(best[start : start + len(task.answer)], task.answer))
    return lengths, scores(tasks, lengths)


def answered(model: Any, tasks: Sequence[Task]) -> tuple[tuple[Task, ...], tuple[TaskScore, ...]]:
    """Tasks that the untouched model gets right, which are all that a format can lose; and its score."""
    lengths, lines = run_tasks(model, tasks, identity)
    return tuple(t for t, n in zip(tasks, lengths, strict=True) if n == len(t.answer)), lines


def continuations(model: Any, prompts: Sequence[tuple[int, ...]]) -> list[Task]:
    """What the untouched model writes greedily after each prompt: a format is right until it would write another."""
    made = []
    with usual_attention(model), torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            # The model's own generation defaults may sample.
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, temperature=None, top_p=None,
                top_k=None, repetition_penalty=1.0, max_new_tokens=CONTINUED, min_new_tokens=CONTINUED,
                pad_token_id=0,
            )  # fmt: skip
            made.append(Task("greedy", prompt, tuple(out[0, len(prompt) :].tolist())))
    return made


@contextmanager
def usual_attention(model: Any) -> Iterator[None]:
    """Within this context the model runs as transformers would run it."""
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)
