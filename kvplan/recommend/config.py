"""The YAML of a cache configuration: written by `kvplan recommend`, taken as MODEL by other commands, held to its
bounds by `kvplan check`.

    kvplan_plan: 1
    model: llama-3.1-8b
    context: 32768
    ...                     fields of a plan request
    bounds: {max_kl: 0.02}  what `kvplan check` holds it to
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kvplan.errors import InputError, did_you_mean
from kvplan.plan import PlanRequest, resolve
from kvplan.recommend.bounds import Bounds
from kvplan.recommend.evidence import bare
from kvplan.recommend.scored import Scored
from kvplan.recommend.types import RecommendRequest

KEY = "kvplan_plan"
VERSION = 1
_FIELDS = (
    "model", "context", "batch", "kv", "k", "v", "latent", "layers", "page_size", "engine", "engine_version",
    "engine_options", "gpu", "util", "weights_dtype", "tp", "dp", "dcp", "dp_attention",
)  # fmt: skip
_BOUNDS = ("max_kl", "min_top1", "at_worst", "slo_itl_ms")


@dataclass(frozen=True)
class Config:
    """A configuration that was read: the plan request, and its bounds (None: none stated)."""

    request: PlanRequest
    fields: dict[str, Any]
    bounds: Bounds | None


def config_text(c: Scored, request: RecommendRequest, bounds: Bounds) -> str:
    """The YAML of one choice."""
    r, chosen = c.resolved.request, c.resolved.engine
    values: dict[str, Any] = {KEY: VERSION} | {name: getattr(r, name) for name in _FIELDS}
    values |= {"model": request.model, "gpu": request.gpu, "kv": None, "util": request.util}
    values["weights_dtype"] = request.weights_dtype
    if chosen:
        # In the engine's own words, which only it understands; it adds its own rules for layers.
        own = {role: chosen.formats[role] for role in ("k", "v", "latent") if role in chosen.formats}
        same = len(set(own.values())) == 1 and not chosen.engine.apart
        values |= {"k": None, "v": None, "latent": None, "layers": ()} | ({"kv": own.popitem()[1]} if same else own)
    usual = {"tp": 1, "dp": 1, "dcp": 1, "dp_attention": False}
    written = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, (), "") and usual.get(name, object()) != value
    }
    limits = {
        "max_kl": bounds.max_kl if bounds.max_kl != float("inf") else None,
        "min_top1": bounds.min_top1 or None,
        "at_worst": bounds.at_worst or None,
        "slo_itl_ms": request.slo_itl_ms,
    }
    written["bounds"] = {name: value for name, value in limits.items() if value is not None}
    return yaml.safe_dump(written, sort_keys=False, width=120)


def command_defaults(config: Config, takes: set[str]) -> dict[str, Any]:
    """What the options of a command are where they are not given.

    Args:
        takes: the command's parameters. `formats` and `latents` are candidates to run, in kvplan's own spelling.

    Raises:
        UsageError, UnsupportedError: as `kvplan.plan.resolve`, for a command that runs candidates.
    """
    found = {name: value for name, value in config.fields.items() if name in takes and name != "model"}
    if "formats" in takes:
        echo = resolve(config.request).request
        k, v = (bare(f) if f else "" for f in (echo.k, echo.v))
        # The engine's pages are not the kernels'.
        found.pop("page_size", None)
        found |= {"latents": [echo.latent]} if echo.latent else {"formats": [k if k == v else f"{k} / {v}"]}
    if "concurrency" in takes and config.request.batch:
        found["concurrency"] = config.request.batch
    return found


def is_config(path: Path) -> bool:
    """Whether a file is such a YAML; only its first line is read."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        with path.open(encoding="utf-8") as file:
            return next((line for line in file if line.strip() and not line.startswith("#")), "").startswith(KEY)
    except (OSError, UnicodeDecodeError):
        return False


def read_config(path: Path) -> Config:
    """A configuration from a file.

    Raises:
        InputError: it cannot be read, is no such YAML, or has an unknown key or an impossible value.
    """
    data = _load(path)
    unknown = [name for name in data if name not in (KEY, "bounds", *_FIELDS)]
    if unknown:
        raise InputError(f"{path} sets {unknown[0]!r}, which is no field of a plan", did_you_mean(unknown[0], _FIELDS))
    if data.get(KEY) != VERSION:
        raise InputError(f"{path} is of version {data.get(KEY)!r}; this kvplan reads {VERSION}", "write it again")
    fields = {name: value for name, value in data.items() if name in _FIELDS}
    for name in ("layers", "engine_options"):
        if name in fields:
            fields[name] = tuple(fields[name])
    try:
        request = PlanRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", "correct the file") from None
    return Config(request, fields, _bounds(path, data.get("bounds")))


def _load(path: Path) -> dict[str, Any]:
    hint = "give a file that kvplan recommend --out wrote"
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no YAML: {' '.join(str(error).split())}", hint) from None
    if not isinstance(data, dict) or KEY not in data:
        raise InputError(f"{path} is no configuration of kvplan: it has no key {KEY}", hint)
    return {str(name): value for name, value in data.items()}


def _bounds(path: Path, data: Any) -> Bounds | None:
    if data is None:
        return None
    if not isinstance(data, dict) or any(name not in _BOUNDS for name in data):
        raise InputError(f"{path}: bounds are {', '.join(_BOUNDS)}", "correct the file")
    numbers = [data.get(name) for name in ("max_kl", "min_top1", "slo_itl_ms")]
    if any(isinstance(n, bool) or not isinstance(n, int | float | None) for n in numbers):
        raise InputError(f"{path}: a bound is no number", "correct the file")
    kl, top1, slo = numbers
    return Bounds(
        max_kl=float("inf") if kl is None else float(kl),
        min_top1=float(top1 or 0.0),
        at_worst=bool(data.get("at_worst", False)),
        most_requests=False,
        slo_seconds=None if slo is None else float(slo) / 1e3,
        words=", ".join(f"{name} {value:g}" for name, value in data.items()),
    )
