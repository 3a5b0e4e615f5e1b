"""What `--json` prints of commands whose answers are not stored: shapes for their JSON schemas."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.quality.scales import Calibration
from kvplan.recommend.types import Recommendation
from kvplan.report.verification import Verified


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class SpecRow(_Answer):
    """One shipped model."""

    id: str
    layers: int
    kinds: str
    """Layers of each kind of cache, in words."""
    max_context: int
    confidence: Literal["verified", "single-source", "memory"] | None


class SpecList(_Answer):
    """`kvplan specs list`."""

    models: list[SpecRow]


class Sourced(_Answer):
    """A version of an engine."""

    name: str
    note: str
    source: str


class Rule(_Answer):
    """One rule by which bytes are allocated."""

    name: str
    text: str
    source: str


class Stored(_Answer):
    """One value of an engine's option for the cache's number type."""

    option: str
    aliases: list[str]
    stores: dict[str, str]
    """Tensor role to the spelling of what is stored."""
    bytes_at_head_dim_128: int | None
    """K and V of `of_tokens` tokens and one KV head."""
    of_tokens: int
    needs: str
    since: str | None
    until: str | None
    compute_capabilities: list[list[str]]
    source: str


class Option(_Answer):
    """A setting that changes bytes."""

    name: str
    kind: Literal["int", "float", "bool", "str"]
    default: int | float | bool | str | None
    """null: worked out from model, device and other options."""
    choices: list[str]
    text: str
    source: str


class EngineAnswer(_Answer):
    """One engine."""

    name: str
    title: str
    flag: list[str]
    default_version: str
    default_format: str
    k_and_v_apart: bool
    page_option: str | None
    versions: list[Sourced]
    formats: list[Stored]
    options: list[Option]
    rules: list[Rule]


class EngineList(_Answer):
    """`kvplan engines`."""

    engines: list[EngineAnswer]


class Gpu(_Answer):
    """As the driver lists it."""

    name: str
    driver: str
    memory: str


class Terminal(_Answer):
    """Where the command ran."""

    colour: bool
    interactive: bool


class DefaultValue(_Answer):
    """A default of an option."""

    value: str
    source: str
    """The variable or file that set it."""


class Defaults(_Answer):
    """The file of defaults, and what holds."""

    file: str
    found: bool
    error: str
    values: dict[str, DefaultValue]


class Doctor(_Answer):
    """`kvplan doctor`."""

    kvplan: str
    python: str
    system: str
    packages: dict[str, str | None]
    """null: not installed."""
    gpus: list[Gpu]
    can_validate: str = Field(alias="validate")
    """What can be validated here."""
    terminal: Terminal
    defaults: Defaults


class Check(_Answer):
    """One bound of a configuration, held or not."""

    name: str
    passed: bool
    detail: str


class Checked(_Answer):
    """`kvplan check`."""

    plan: str
    """The file."""
    passed: bool
    checks: list[Check]


class Verification(_Answer):
    """`kvplan recommend --verify`."""

    recommendation: Recommendation
    verification: Verified


ANSWERS: dict[str, tuple[str, Any, str]] = {
    "specs": ("kvplan.specs/1", SpecList, "specs list"),
    "engines": ("kvplan.engines/1", EngineList, "engines"),
    "doctor": ("kvplan.doctor/1", Doctor, "doctor"),
    "check": ("kvplan.check/1", Checked, "check"),
    "scales": ("kvplan.scales/1", Calibration, "calibrate"),
    "verification": ("kvplan.verification/1", Verification, "recommend --verify"),
}
"""Name to what its JSON says under `schema`, its class, and the command that prints it."""
