"""Options that commands share. Each is one field of PlanRequest, and its help is that field's own docstring."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvplan.cli import complete
from kvplan.errors import InputError
from kvplan.plan.types import PlanRequest
from kvplan.units import parse_bandwidth, parse_bytes, parse_count

F = TypeVar("F", bound=Callable[..., Any])


def _read(parse: Callable[[str, str], int], what: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    return lambda _ctx, _param, text: None if text is None else parse(text, what)


def _gpu(context: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """`none` switches a default off, and so do the figures of a GPU without a name."""
    given = context.get_parameter_source("gpu") is click.core.ParameterSource.COMMANDLINE
    if text == "none" or (not given and (context.params.get("gpu_memory") or context.params.get("bandwidth"))):
        return None
    return text


def _engine(_context: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """`none` switches a default off."""
    return None if text == "none" else text


_SETTINGS: dict[str, dict[str, Any]] = {
    "context": {"metavar": "N", "callback": _read(parse_count, "context")},
    "batch": {"metavar": "N", "callback": _read(parse_count, "batch"), "default": "1", "show_default": True},
    "kv": {"metavar": "F", "shell_complete": complete.formats},
    "k": {"metavar": "F", "shell_complete": complete.formats},
    "v": {"metavar": "F", "shell_complete": complete.formats},
    "latent": {"metavar": "F"},
    "index": {"metavar": "F"},
    "state_dtype": {"metavar": "D"},
    "conv_dtype": {"metavar": "D"},
    "page_size": {"metavar": "N", "callback": _read(parse_count, "page size")},
    "layers": {"metavar": "RULE", "multiple": True},
    "mtp": {"is_flag": True},
    "tp": {"metavar": "N", "callback": _read(parse_count, "tp"), "default": "1", "show_default": True},
    "pp": {"metavar": "N", "callback": _read(parse_count, "pp"), "default": "1", "show_default": True},
    "dp": {"metavar": "N", "callback": _read(parse_count, "dp")},
    "dcp": {"metavar": "N", "callback": _read(parse_count, "dcp"), "default": "1", "show_default": True},
    "pcp": {"metavar": "N", "callback": _read(parse_count, "pcp"), "default": "1", "show_default": True},
    "dp_attention": {"is_flag": True},
    "gpu": {"metavar": "G", "callback": _gpu, "shell_complete": complete.gpus},
    "gpu_memory": {"metavar": "SIZE", "is_eager": True, "callback": _read(parse_bytes, "GPU memory")},
    "bandwidth": {"metavar": "RATE", "is_eager": True, "callback": _read(parse_bandwidth, "bandwidth")},
    "util": {"metavar": "SHARE", "type": float},
    "weights_dtype": {"metavar": "D"},
    "beyond_max": {"is_flag": True},
    "lengths": {"metavar": "DIST"},
    "shared_prefix": {"metavar": "N", "callback": _read(parse_count, "shared prefix"), "default": None},
    "samples": {"metavar": "N", "callback": _read(parse_count, "samples"), "default": "1", "show_default": True},
    "draft": {"metavar": "MODEL", "shell_complete": complete.models},
    "calibration": {"metavar": "FILE"},
    "engine": {"metavar": "E", "is_eager": True, "callback": _engine, "shell_complete": complete.engines},
    "engine_version": {"metavar": "V", "shell_complete": complete.versions},
    "engine_options": {"flag": "--engine-option", "metavar": "NAME=VALUE", "multiple": True},
}
"""Field of PlanRequest to its click settings."""


class _PlanOption(click.Option):
    """An option whose help is read when it is shown."""

    @property
    def help(self) -> str:
        assert self.name is not None
        # Imported here: reading a source takes modules that nothing but --help needs.
        from kvplan.texts import field_text

        return field_text(PlanRequest, self.name)

    @help.setter
    def help(self, text: str | None) -> None:
        """Click's constructor sets what it was given, which here is nothing."""


def plan_options(*fields: str) -> Callable[[F], F]:
    """A decorator that adds the options of these PlanRequest fields, in this order; values arrive under their names."""

    def decorate(function: F) -> F:
        for name in reversed(fields):
            settings = dict(_SETTINGS[name])
            option = settings.pop("flag", f"--{name.replace('_', '-')}")
            function = click.option(option, name, cls=_PlanOption, **settings)(function)
        return function

    return decorate


def read_result_file(file: str) -> tuple[str, str]:
    """(text, what to call it) of a file, or of standard input for `-`.

    Raises:
        InputError: it cannot be read.
    """
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            return sys.stdin.read(), name
        return Path(file).read_text(encoding="utf-8"), name
    except UnicodeDecodeError:
        raise InputError(f"{name} is no text", "give a file written with --json") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}", "give a file written with --json") from None


CACHE_OPTIONS = (
    "context",
    "batch",
    "kv",
    "k",
    "v",
    "latent",
    "index",
    "state_dtype",
    "conv_dtype",
    "layers",
    "mtp",
    "page_size",
)
SHARDING_OPTIONS = ("tp", "pp", "dp", "dcp", "pcp", "dp_attention")
GPU_OPTIONS = ("gpu", "gpu_memory", "bandwidth", "util", "weights_dtype", "beyond_max")

WORKLOAD_OPTIONS = ("lengths", "shared_prefix", "samples", "draft", "calibration")
ENGINE_OPTIONS = ("engine", "engine_version", "engine_options")


def _model(context: click.Context, _param: click.Parameter, text: str) -> str:
    """A configuration that `kvplan recommend --out` wrote stands for its model, and for options that are not given."""
    if not text.lower().endswith((".yaml", ".yml")):
        return text
    # Imported here: most people name a model.
    from kvplan.recommend.config import command_defaults, is_config, read_config

    if not is_config(Path(text)):
        return text
    config = read_config(Path(text))
    takes = {p.name for p in context.command.params if p.name}
    context.default_map = {**(context.default_map or {}), **command_defaults(config, takes)}
    return config.request.model


model_argument = click.argument("model", shell_complete=complete.models, is_eager=True, callback=_model)
"""`MODEL`, passed on as `model`: a name, a spec's path, or a stored configuration."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
"""`--json`, passed on as `as_json`."""
