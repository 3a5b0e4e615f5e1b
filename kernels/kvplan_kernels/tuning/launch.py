"""Which launch shape a decode takes on this GPU: the table's where it was measured, elsewhere what a search found.

`decode` itself never searches and reads no file: without a `config` it takes the table's entry on every GPU. Who wants
more asks once, before the steps: `decode(q, cache, config=tuned_config(q, cache).config)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from kvplan_kernels.attention.config import DecodeConfig, count_sms, is_measured
from kvplan_kernels.attention.decode import count_heads, decode, launch_config, launch_mode, make_workspace
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.bench.baseline import rotating
from kvplan_kernels.bench.timing import Timing, graph_time
from kvplan_kernels.cache import Cache
from kvplan_kernels.tuning import kept
from kvplan_kernels.tuning.candidates import candidates, neighbours
from kvplan_kernels.tuning.key import launch_key
from kvplan_kernels.tuning.search import Say, search

Source = Literal["table", "generic", "searched", "kept"]
Timer = Callable[[Sequence[Callable[[], object]]], Timing]


def short_time(calls: Sequence[Callable[[], object]]) -> Timing:
    """Fewer replays than where a time is reported: the order of shapes is asked for, not the third digit."""
    return graph_time(calls, replays=3)


@dataclass(frozen=True)
class Launch:
    """A launch shape and where it comes from.

    Attributes:
        source: table: its entry, measured on this GPU; generic: its entry, on a GPU that it was not measured on;
            searched: by this process, just now; kept: by an earlier search, from the cache folder.
    """

    config: DecodeConfig
    source: Source


def table_launch(config: DecodeConfig, device: torch.device) -> Launch:
    """An entry of a table."""
    return Launch(config, "table" if is_measured(device) else "generic")


def tuned_config(
    q: Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    say: Say = lambda _: None,
    timer: Timer = short_time,
) -> Launch:
    """The launch shape for `decode` with these arguments; on a GPU of the table nothing is tried.

    A search times a dozen or so shapes near the table's entry on the given cache and copies of it (300 MB in all at
    least), and leaves out those that compute something else. What it finds holds for these shapes at any lengths.

    Args:
        q, cache, sm_scale, variant: as for `decode`.
        say: told of a search, and of files that cannot be used.
        timer: times calls that take turns.

    Raises:
        UnsupportedError, ValueError: what `decode` refuses.
    """
    mode = launch_mode(q, cache, variant)
    base = launch_config(q, cache, mode)
    if is_measured(q.device):
        return table_launch(base, q.device)
    heads, sms = count_heads(cache, mode), count_sms(q.device)
    tried = neighbours(base, candidates(base, cache.layout, cache.page_size, heads, sms))
    key = launch_key(q, cache, mode)
    config = kept.read(key, tried, say)
    if config is not None:
        return Launch(config, "kept")
    caches = rotating(cache)

    def run(config: DecodeConfig) -> Tensor:
        out = q.new_full((*q.shape[:-1], cache.layout.view("v").dim), float("nan"), dtype=torch.float32)
        return decode(q, cache, sm_scale=sm_scale, variant=variant, config=config, out=out)

    def seconds(config: DecodeConfig) -> float:
        out, space = q.new_empty((*q.shape[:-1], cache.layout.view("v").dim)), make_workspace(q, cache, config)
        call = partial(decode, q, sm_scale=sm_scale, variant=variant, config=config, out=out, workspace=space)
        return timer([partial(call, each) for each in caches]).seconds

    found = search(tried, run, seconds, say)
    kept.keep(key, found, say)
    return Launch(found.config, "searched")
