"""The refusals of the grammar: combinations of options that mean nothing, whatever the geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.formats.grammar import Format


def check_meaning(text: str, f: Format, given: Mapping[str, str]) -> None:
    """Refuse what cannot be meant.

    Args:
        text: as the user wrote it, for the message.
        given: options that were written out, for those that also have defaults.

    Raises:
        UsageError: naming the option and the way out.
    """
    what = f"format {text!r}"
    if f.asym and not f.number.startswith("int"):
        raise UsageError(f"{what}: asym needs an integer number", "floats are symmetric: drop asym")
    if f.row and f.granularity != "group":
        raise UsageError(f"{what}: row needs group/N", "write group/32,row or drop row")
    if f.flat and (f.granularity != "group" or f.row or f.pack or f.rope):
        raise UsageError(f"{what}: flat needs group/N, without row, pack and rope", "write group/64,flat or drop flat")
    if f.number == "int1" and not f.asym:
        raise UsageError(f"{what}: one bit has no sign", "write asym")
    if f.number.startswith("lm") and not f.rot:
        raise UsageError(f"{what}: a Lloyd-Max codebook needs rot", f"write {text},rot")
    if f.asym and f.scale == "e8m0":
        raise UsageError(f"{what}: e8m0 holds powers of two, which a zero is not", "drop asym, or use scale=fp16")
    if f.global_scale and f.is_static:
        raise UsageError(f"{what}: global is a scale above scales stored with the rows", "drop global, or use group/16")
    _check_residual(what, f, given)
    _check_pack(what, f)


def _check_residual(what: str, f: Format, given: Mapping[str, str]) -> None:
    if "recent" in given and f.is_static:
        raise UsageError(f"{what}: recent has no use with static scales", "drop recent, or use token")
    if "flush" in given and not f.recent:
        raise UsageError(f"{what}: flush needs recent=R", "write recent=128,flush=...")
    if f.by_channel and f.recent % f.group:
        fit = -(-f.recent // f.group) * f.group
        raise UsageError(f"{what}: recent={f.recent} is not a multiple of {f.group}", f"use recent={fit}")
    if f.by_channel and f.flush == "oldest":
        raise UsageError(f"{what}: channel/N cannot flush one token at a time", "drop flush=oldest")


def _check_pack(what: str, f: Format) -> None:
    if f.pack and f.is_static and not f.rope:
        raise UsageError(
            f"{what}: pack puts codes beside scales stored with the rows, and these are static",
            "drop pack, or use token or group/N",
        )
    if f.pack == "slot" and f.by_channel:
        raise UsageError(f"{what}: a slot is one token, channel/N covers several", "write pack=page")
