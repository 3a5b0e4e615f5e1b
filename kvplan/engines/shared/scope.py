"""What an engine's rules cover; anything else is refused by name."""

from __future__ import annotations

from collections.abc import Collection

from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError

_HINT = "plan without --engine"


def check_scope(
    case: Case,
    title: str,
    roles: Collection[str],
    *,
    laws: Collection[str] = ("all", "window", "chunk", "ring", "encoder"),
    strides: bool = False,
    pp: bool = True,
    mtp: bool = True,
    fp32: bool = False,
) -> None:
    """Refuse a case that kvplan has no rule for in an engine.

    Args:
        roles: kv, latent, index, cross, state.
        laws: retention laws.
        strides: whether rows of several tokens are covered.
        fp32: whether rows of a 32-bit model are covered; most engines run it in a 16-bit type of their choice.

    Raises:
        UnsupportedError: naming the group or the layout of GPUs.
    """
    for group in case.groups:
        if group.role not in roles or group.law.law not in laws or (group.law.stride != 1 and not strides):
            what = group.role if group.law.stride == 1 else f"{group.role} rows of {group.law.stride} tokens"
            raise UnsupportedError(f"kvplan has no rule for group {group.name} ({what}) in {title}", _HINT)
        if not fp32 and any(t.number == "fp32" for t in group.layout.tensors):
            raise UnsupportedError(f"kvplan does not know in which 16-bit type {title} runs {case.spec.id}", _HINT)
    sharding = case.sharding
    for name, size in (("dcp", sharding.dcp), ("pcp", sharding.pcp), ("pp", 1 if pp else sharding.pp)):
        if size > 1:
            raise UnsupportedError(f"kvplan has no rule for {name} {size} in {title}", _HINT)
    if case.mtp and not mtp:
        raise UnsupportedError(f"kvplan has no rule for multi-token prediction layers in {title}", _HINT)
