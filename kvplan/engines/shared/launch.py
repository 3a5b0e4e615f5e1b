"""How an engine is started: its command, and the options that exist there."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from kvplan.errors import UnsupportedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of the engine's command line.

    Attributes:
        field: what it sets: context (tokens of a request), total_context (of all requests), batch, tp, pp, dp, dcp,
            share, kv, k, v, or the name of an EngineOption.
        text: as it is written, with `{value}`; a bool is written, without a value, only when it is on.
        source: project, version and file or documentation page that has it.
        since: first version that has it; empty: all covered ones.
        off: of a bool, what is written when it is off; empty: nothing.
        environment: whether it is a variable written before the command.
        group: text with `{inside}` that holds all flags of the same group, for arguments inside arguments.
        values: what is written for a value, where that is not the value itself.
        needs: another field without which this one says nothing.
        always: whether it is written even at the engine's default.
    """

    field: str
    text: str
    source: str
    since: str = ""
    off: str = ""
    environment: bool = False
    group: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: str = ""
    always: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """The engine's command.

    Attributes:
        command: with `{model}`.
        language: shell, or python where the engine is a library.
        closing: what ends a python call.
        file: of an engine that starts a file, the file's name where the plan's model is none.
    """

    command: str
    flags: tuple[Flag, ...] = ()
    language: str = "shell"
    closing: str = ""
    file: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """A command that starts the engine as it was planned.

    Attributes:
        text: the command, one line of shell or a few of python.
        storage: what the cache holds, by tensor.
        compute: in which type attention multiplies, where that is known; storage says nothing about it.
    """

    text: str
    language: str
    storage: dict[str, str]
    compute: str

    # Read by pydantic where a plan is loaded.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def write_launch(
    spec: LaunchSpec, model: str, values: Mapping[str, Any], has: Mapping[str, bool], where: str
) -> tuple[str, str]:
    """(text, language) of the command.

    Args:
        values: field to value; a field without a value is left out.
        has: flag text to whether this version has it.
        where: engine and version, for the message.

    Raises:
        UnsupportedError: a value must be set and the engine's command has no option for it.
    """
    known = {flag.field for flag in spec.flags}
    missing = [name for name, value in values.items() if value is not None and name not in known]
    if missing:
        raise UnsupportedError(
            f"{where}: kvplan knows no option of its command for {', '.join(missing)}",
            "start it without, or plan without that setting",
        )
    words: dict[str, list[str]] = {"": []}
    variables: list[str] = []
    for flag in spec.flags:
        value = values.get(flag.field)
        if value is None or not has[flag.text] or (flag.needs and values.get(flag.needs) is None):
            continue
        text = _word(flag, value, spec.language)
        if text:
            (variables if flag.environment else words.setdefault(flag.group, [])).append(text)
    if spec.language == "python":
        inner = [group.format(inside=", ".join(texts)) for group, texts in words.items() if group]
        return spec.command.format(model=model) + ", ".join([*words[""], *inner]) + spec.closing, "python"
    return " ".join([*variables, spec.command.format(model=shlex.quote(model)), *words[""]]), "shell"


def _word(flag: Flag, value: Any, language: str) -> str:
    if isinstance(value, bool) and "{value}" not in flag.text:
        return flag.text if value else flag.off
    value = flag.values.get(str(value), value)
    shown = value if language == "python" else shlex.quote(str(value))
    return flag.text.format(value=shown)
