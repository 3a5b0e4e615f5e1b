"""Which layers of a rank share an attention window, and how a pool is shared out between windows."""

from __future__ import annotations

from fractions import Fraction

from kvplan.engines.shared.types import Case
from kvplan.errors import UsageError

EVERY_ROW = 0
"""The window of layers that keep every row."""


def read_windows(text: str | None) -> tuple[int, ...]:
    """`1024,1024,32768` as numbers; empty without a list.

    Raises:
        UsageError: something that is no positive number of tokens.
    """
    if not text:
        return ()
    words = text.strip("[]").replace(" ", "").split(",")
    if not all(word.isdigit() and int(word) for word in words):
        raise UsageError(f"max_attention_window {text!r} is no list of tokens", "for example 1024,1024,32768")
    return tuple(int(word) for word in words)


def read_shares(text: str | None, windows: int) -> tuple[Fraction, ...]:
    """The share of the pool that each window has, smallest window first: equal without a list.

    Raises:
        UsageError: not one share for each window, or a sum that is not 1.
    """
    if not text:
        return (Fraction(1, windows),) * windows
    try:
        shares = tuple(Fraction(word) for word in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"TRTLLM_WINDOW_SIZE_SHARES {text!r} is no list of shares", "for example 0.4,0.6") from None
    if len(shares) != windows:
        raise UsageError(
            f"TRTLLM_WINDOW_SIZE_SHARES {text!r} has {len(shares)} shares for {windows} windows", "give one for each"
        )
    if sum(shares) != 1:
        raise UsageError(f"TRTLLM_WINDOW_SIZE_SHARES {text!r} does not sum to 1", "for example 0.4,0.6")
    return shares


def layer_windows(case: Case) -> dict[str, dict[int, int]]:
    """Group name to (window to number of layers) on this rank; a window of 0 keeps every row.

    The list is repeated over the layers that have a cache; one as long as the whole model is cut to the stage's layers.
    """
    windows = read_windows(case.options["max_attention_window"])
    names = {g.name for g in case.groups if g.role in ("kv", "latent", "index")}
    placed = {
        name: case.spec.positions(case.spec.group(name)) for name in names if not name.startswith("mtp-")
    }  # fmt: skip
    everywhere = sorted({layer for layers in placed.values() for layer in layers})
    span = case.sharding.stage_layers(case.spec.layers, case.stage)
    here = [layer for layer in everywhere if layer in span]
    order = everywhere if len(windows) == len(everywhere) else here
    made: dict[str, dict[int, int]] = {}
    for group in case.groups:
        if group.name not in names:
            continue
        counts: dict[int, int] = {}
        layers = placed.get(group.name)
        if layers is None or not windows:
            counts[EVERY_ROW] = group.layers
        else:
            for layer in (i for i in layers if i in span):
                window = windows[order.index(layer) % len(windows)]
                counts[window] = counts.get(window, 0) + 1
        made[group.name] = counts
    return made
