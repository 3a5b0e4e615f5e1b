"""Requests as the command lines that ask them."""

from __future__ import annotations

import shlex
from dataclasses import replace

from kvplan.formats.grammar import Format, parse_any
from kvplan.plan import Plan
from kvplan.plan.types import PlanRequest

_FLAGS = {"engine_options": "--engine-option"}


def estimate_command(request: PlanRequest) -> str:
    """`kvplan estimate MODEL ...` with every option that is not at its default."""
    words = ["kvplan", "estimate", request.model]
    for name, field in PlanRequest.model_fields.items():
        value = getattr(request, name)
        if name == "model" or value == field.default:
            continue
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        if value is True:
            words.append(flag)
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [flag, str(each)]
    return shlex.join(words)


def validate_command(plan: Plan) -> str:
    """`kvplan validate MODEL ...` for the formats of a plan, at its context and batch.

    Engines that store scales beside the codes of each slot are validated with the same values in planes of their own.
    """
    asked = plan.request
    words = ["kvplan", "validate", asked.model]
    for name in ("context", "batch"):
        value = getattr(asked, name)
        words += [f"--{name}", str(value)] if value else []
    if asked.latent:
        words += ["--latent", _in_planes(asked.latent)]
    for spelling in dict.fromkeys(_in_planes(f) for f in (asked.k, asked.v) if f):
        words += ["--kv", spelling]
    return shlex.join(words)


def _in_planes(spelling: str) -> str:
    parsed = parse_any(spelling)
    return replace(parsed, pack="").spelling if isinstance(parsed, Format) and parsed.pack == "slot" else spelling
