"""What `kvplan doctor` looks at."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvplan import __version__
from kvplan.cli.defaults import config_path, defaults
from kvplan.errors import KvplanError

NEEDED = ("click", "pydantic", "PyYAML", "rich", "textual")
OPTIONAL = {
    "torch": "validate",
    "triton": "validate",
    "numpy": "validate --device cpu",
    "gguf": "GGUF tools of the project",
    "huggingface_hub": "models by their Hugging Face id",
    "matplotlib": "report --png",
    "textual-serve": "tui --web",
}
"""Package to what it is for."""
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
PATIENCE = 20
"""Seconds for the driver to answer."""


def examine() -> dict[str, Any]:
    """Everything, as built-in types."""
    packages = {name: _version(name) for name in (*NEEDED, *OPTIONAL)}
    gpus = _gpus()
    return {
        "kvplan": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "gpus": gpus,
        "validate": _validate(packages, gpus),
        "terminal": {"colour": _colour(), "interactive": sys.stdin.isatty() and sys.stdout.isatty()},
        "defaults": _defaults(),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for readers."""
    yield f"kvplan {found['kvplan']}, Python {found['python']}, {found['system']}"
    for name, number in found["packages"].items():
        use = f" (for {OPTIONAL[name]})" if name in OPTIONAL else ""
        yield f"  {name} {number or 'not installed'}{use}"
    yield "GPUs"
    for gpu in found["gpus"]:
        yield f"  {gpu['name']}, driver {gpu['driver']}, {gpu['memory']}"
    if not found["gpus"]:
        yield "  none that nvidia-smi knows of"
    yield f"validate: {found['validate']}"
    terminal = found["terminal"]
    yield f"terminal: {'colour' if terminal['colour'] else 'no colour'}; " + (
        "kvplan tui can run here" if terminal["interactive"] else "no terminal here, so no kvplan tui"
    )
    given = found["defaults"]
    yield f"defaults: {given['file']} ({'found' if given['found'] else 'not there'})"
    if given["error"]:
        yield f"  unusable: {given['error']}"
    for name, each in given["values"].items():
        yield f"  {name} {each['value']} from {each['source']}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gpus() -> list[dict[str, str]]:
    """As the driver lists them; nothing where there is no driver."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return [dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows if len(row) == 3]


def _validate(packages: dict[str, str | None], gpus: list[dict[str, str]]) -> str:
    needed = ("torch", "triton") if gpus else ("torch", "triton", "numpy")
    missing = [name for name in needed if packages[name] is None]
    if missing:
        return f"not here: {' and '.join(missing)} not installed; pip install 'kvplan-advisor[gpu]'"
    if not gpus:
        return "correctness only, with --device cpu (Triton's interpreter)"
    return "correctness, errors and times on the GPU"


def _colour() -> bool:
    return not os.environ.get("NO_COLOR") and sys.stdout.isatty()


def _defaults() -> dict[str, Any]:
    path, values, problem = config_path(), {}, ""
    try:
        values = {name: {"value": d.value, "source": _short(d.source)} for name, d in defaults().items()}
    except KvplanError as error:
        problem = f"{error.message}; {error.hint}"
    return {"file": _short(str(path)), "found": path.is_file(), "error": problem, "values": values}


def _short(path: str) -> str:
    """Without the name of the user, as these lines are pasted into reports."""
    home = str(Path.home())
    return path.replace(home, "~", 1) if path.startswith(home + os.sep) else path
