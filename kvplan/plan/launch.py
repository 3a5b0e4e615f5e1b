"""The launch command of a plan: only options that exist in that engine and version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.engines.shared.launch import Launch, write_launch
from kvplan.engines.shared.select import number_of
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.plan.resolve import Resolved


def launch_of(resolved: Resolved) -> Launch | None:
    """The command for a resolved request; None without an engine, for one that kvplan cannot start, and where the plan
    needs a setting for which the engine's command has no option.
    """
    chosen, request = resolved.engine, resolved.request
    if chosen is None or chosen.engine.launch is None:
        return None
    engine, spec = chosen.engine, chosen.engine.launch
    now = number_of(chosen.version)
    has = {flag.text: not flag.since or not now or now >= number_of(flag.since) for flag in spec.flags}
    picked = {f.option: f for f in engine.formats}
    if any(not picked[option].launchable for option in chosen.formats.values()):
        return None
    model = resolved.spec.hf_ids[0] if resolved.spec.hf_ids else request.model
    if spec.file and not request.model.endswith(Path(spec.file).suffix):
        model = spec.file
    values = _values(resolved)
    known = {flag.field for flag in spec.flags}
    # Lengths and numbers of requests limit a server; one that takes any needs no option for them.
    values = {name: value for name, value in values.items() if name in known or name not in ("context", "batch")}
    try:
        text, language = write_launch(spec, model, values, has, f"{engine.title} {chosen.version}")
    except UnsupportedError:
        return None
    storage = {role: getattr(request, role) or "" for role in chosen.formats}
    compute = "; ".join(dict.fromkeys(picked[o].compute for o in chosen.formats.values() if picked[o].compute))
    return Launch(text=text, language=language, storage=storage, compute=compute)


def _values(resolved: Resolved) -> dict[str, Any]:
    """Every setting that differs from the engine's default, by field."""
    chosen, request, sharding = resolved.engine, resolved.request, resolved.sharding
    assert chosen is not None
    engine = chosen.engine
    flags = engine.launch.flags if engine.launch else ()
    known, always = {flag.field for flag in flags}, {flag.field for flag in flags if flag.always}
    values: dict[str, Any] = {
        "context": request.context,
        "batch": request.batch if request.context else None,
        "tp": sharding.tp if sharding.tp > 1 else None,
        "pp": sharding.pp if sharding.pp > 1 else None,
        "dp": sharding.dp if sharding.dp > 1 else None,
        "dp_attention": True if sharding.dp_attention else None,
        "dcp": sharding.dcp if sharding.dcp > 1 else None,
    }
    if "total_context" in known and request.context:
        values["total_context"] = request.context * request.batch
    if "share" in known and resolved.device:
        values["share"] = f"{float(resolved.share):g}"
    default = engine.formats[0].option
    asked = {role: option for role, option in chosen.formats.items() if option != default and role != "index"}
    if engine.apart:
        # A latent is stored in K's type.
        values |= {role: option for role, option in asked.items() if role in ("k", "v")}
        if "pair" in known and asked:
            values = {name: value for name, value in values.items() if name not in ("k", "v")}
            values["pair"] = f"{chosen.formats['k']},{chosen.formats['v']}"
    elif asked:
        values["kv"] = next(iter(asked.values()))
    for option in engine.options:
        value = chosen.options[option.name]
        if value is not None and (value != option.default or option.name in always) and option.name in known:
            values[option.name] = value
    return {name: value for name, value in values.items() if value is not None}
