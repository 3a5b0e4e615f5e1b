"""A request as the command line that asks it."""

from __future__ import annotations

import shlex

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
