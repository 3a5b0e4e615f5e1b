"""What a request means to an engine: its version, options and formats, or an error with the nearest that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvplan.engines.shared.types import NATIVE, Engine, EngineFormat, EngineOption
from kvplan.errors import KvplanError, UnsupportedError, UsageError, did_you_mean
from kvplan.formats.grammar import Pair, parse_any, parse_kv
from kvplan.units import parse_count

ROLES = ("k", "v", "latent", "index")


def number_of(version: str) -> tuple[int, ...]:
    """`0.11.2` as (0, 11, 2), for comparing; parts that are no number end it."""
    numbers = []
    for part in version.lstrip("vb").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def choose_version(engine: Engine, asked: str | None) -> str:
    """The covered version that is meant: the newest without one; `0.33` means `0.33.0`.

    Raises:
        UsageError: a version whose rules kvplan does not know, with the nearest covered one.
    """
    names = [v.name for v in engine.versions]
    if asked is None:
        return names[0]
    wanted = asked.removeprefix("v")
    for name in names:
        if wanted == name or (number_of(wanted) and number_of(name)[: len(number_of(wanted))] == number_of(wanted)):
            return name
    raise UsageError(
        f"kvplan has no rules for {engine.title} {asked}",
        f"nearest covered version: {_nearest_version(wanted, names)}; covered: {', '.join(names)}",
    )


def _nearest_version(wanted: str, names: list[str]) -> str:
    target = number_of(wanted)
    if not target:
        return names[0]

    def distance(name: str) -> list[int]:
        other = number_of(name)
        width = max(len(target), len(other))
        pairs = zip(target + (0,) * (width - len(target)), other + (0,) * (width - len(other)), strict=True)
        return [abs(a - b) for a, b in pairs]

    return min(names, key=distance)


def read_options(engine: Engine, given: Iterable[str]) -> dict[str, Any]:
    """Every option of the engine, by name: what `NAME=VALUE` texts say, else its default.

    Raises:
        UsageError: no such option, or a value of another kind.
    """
    known = {option.name: option for option in engine.options}
    values: dict[str, Any] = {name: option.default for name, option in known.items()}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals:
            raise UsageError(f"engine option {text!r} has no value", "write NAME=VALUE")
        if name not in known:
            hint = did_you_mean(name, known) if known else f"{engine.title} has no options that change bytes"
            raise UsageError(f"{engine.title} has no option {name!r} that changes cache bytes", hint)
        values[name] = _read(known[name], value.strip())
    return values


def _read(option: EngineOption, text: str) -> int | float | bool | str:
    if option.kind is bool:
        words = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
        if text.lower() not in words:
            raise UsageError(f"{option.name} {text!r} is neither on nor off", "write on or off")
        return words[text.lower()]
    if option.kind is int:
        return 0 if text == "0" else parse_count(text, option.name)
    if option.kind is float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{option.name} {text!r} is no number", "write a number such as 0.8") from None
    if option.choices and text not in option.choices:
        raise UsageError(f"unknown {option.name} {text!r}", did_you_mean(text, option.choices))
    return text


def available(engine: Engine, version: str) -> list[EngineFormat]:
    """The formats that a version has."""
    now = number_of(version)

    def there(f: EngineFormat) -> bool:
        late = f.since and now and now < number_of(f.since)
        gone = f.until and now and now > number_of(f.until)
        return not (late or gone)

    return [f for f in engine.formats if there(f)]


def choose_formats(
    engine: Engine, version: str, asked: Mapping[str, str | None], present: frozenset[str], native: str
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """What a request's formats are in this engine.

    Args:
        asked: `kv`, `k`, `v`, `latent`, `index` as the user wrote them: the engine's own option, or a spelling.
        present: tensor roles of the model.
        native: the model's own dtype, such as `bf16`.

    Returns:
        Spelling by role, the engine's option by role, and layer rules that the engine adds by itself.

    Raises:
        UsageError: no such format in this engine and version, or options that it cannot combine.
    """
    formats = available(engine, version)
    picked: dict[str, EngineFormat] = {}
    # An engine with an option for K and one for V has both whatever the model keeps; a latent is stored as K is.
    asks = present | {"k", "v"} if engine.apart else present
    joint = None if engine.apart else _joint(formats, asked, native)
    for role in ROLES:
        if role not in asks:
            continue
        if joint is not None and role in ("k", "v"):
            picked[role] = joint
            continue
        as_k = asked.get("k") if engine.apart and role == "latent" else None
        text = asked.get(role) or as_k or (asked.get("kv") if role != "index" else None)
        try:
            picked[role] = _find(engine, version, formats, role, text, native) if text else formats[0]
        except UnsupportedError:
            # What is asked fits another tensor of the model only.
            if role in present:
                raise
    if "index" in picked and not asked.get("index"):
        # Index keys follow the format of the rows that they index.
        follows = picked.get("latent") or picked.get("k")
        picked["index"] = follows if follows is not None and follows.index else picked["index"]
    _check_joint(engine, picked, asked)
    stored = {role: f for role, f in picked.items() if role in present}
    spelled = {role: native if getattr(f, role) == NATIVE else getattr(f, role) for role, f in stored.items()}
    for role, f in stored.items():
        if not getattr(f, role):
            raise UsageError(
                f"{engine.title} {version} has no {f.option} for the {role} of this model",
                "for it there is: " + ", ".join(g.option for g in formats if getattr(g, role)),
            )
    skips = dict.fromkeys(rule for f in picked.values() for rule in f.skips)
    return spelled, {role: f.option for role, f in picked.items()}, tuple(skips)


def _joint(formats: list[EngineFormat], asked: Mapping[str, str | None], native: str) -> EngineFormat | None:
    """The one format that stores K and V as they were asked for apart, such as a pair that a plan echoes; or None."""
    if not asked.get("k") or not asked.get("v"):
        return None
    wanted = [_spelled(asked[role] or "", role) for role in ("k", "v")]
    return next((f for f in formats if [_canonical(s, native) for s in (f.k, f.v)] == wanted), None)


def _check_joint(engine: Engine, picked: dict[str, EngineFormat], asked: Mapping[str, str | None]) -> None:
    """K and V of one option, unless the engine has one for each."""
    if engine.apart or "k" not in picked or picked["k"] is picked["v"]:
        return
    if not asked.get("k") or not asked.get("v"):
        given = "k" if asked.get("k") else "v"
        hint = "give --kv, or both"
        raise UsageError(f"{engine.title} has one option for K and V, and only --{given} is given", hint)
    raise UsageError(
        f"{engine.title} has one option for K and V ({engine.flag[0]}): {picked['k'].option} and {picked['v'].option} "
        "cannot be combined",
        "give --kv",
    )


def _find(engine: Engine, version: str, formats: list[EngineFormat], role: str, text: str, native: str) -> EngineFormat:
    """The format that a text names for a role: the engine's own word first, then a spelling with the same rows."""
    for f in formats:
        if text in f.names:
            return f
    wanted = _spelled(text, role)
    known = [name for f in formats for name in f.names]
    if wanted is None:
        raise UsageError(f"{engine.title} {version} has no cache format {text!r}", did_you_mean(text, known))
    for f in formats:
        if _canonical(getattr(f, role), native) == wanted:
            return f
    rows = ", ".join(f.option for f in formats if getattr(f, role))
    meant = wanted if wanted == text else f"{text} ({wanted})"
    others = [other.title for other in _who_stores(role, wanted) if other.name != engine.name]
    elsewhere = f"{', '.join(others)} store it" if others else "no engine that kvplan knows stores it"
    raise UnsupportedError(
        f"{engine.title} {version} stores no {role} as {meant}",
        f"it has: {rows}; {elsewhere}; or plan without --engine",
    )


def _who_stores(role: str, wanted: str) -> list[Engine]:
    """Every engine that has these rows for a tensor."""
    # Imported here: the package imports engines, which import this module.
    from kvplan.engines import engine_names, load_engine

    every = [load_engine(name) for name in engine_names()]
    return [e for e in every if any(_canonical(getattr(f, role), "") == wanted for f in e.formats)]


def _spelled(text: str, role: str) -> str | None:
    """The canonical spelling that a text has for a role; None if it is no spelling."""
    try:
        if role in ("k", "v"):
            both = parse_kv(text)
            return (both.k if role == "k" else both.v).spelling if isinstance(both, Pair) else both.spelling
        return parse_any(text).spelling
    except KvplanError:
        return None


def _canonical(spelling: str, native: str) -> str:
    spelled = native if spelling == NATIVE else spelling
    return parse_any(spelled).spelling if spelled else ""
