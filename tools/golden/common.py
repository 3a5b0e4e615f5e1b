"""What the adapters of golden files share: an outcome for each record, by comparison only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import KvplanError

EQUAL, DIFFERENT, OUT = "equal", "different", "not in scope"


@dataclass(frozen=True)
class Outcome:
    """One record of a golden file.

    Attributes:
        record: its id, or its position.
        kind: `figures` where the engine gave some, `refusal` where it refused.
        rule: of a record that is not in scope, the rule that says so.
    """

    record: str
    kind: str
    verdict: str
    expected: Any = None
    found: Any = None
    rule: str = ""


def figures(record: str, expected: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> Outcome:
    """Compare figures by name; a refusal of ours is different, and so is a record that cannot be read."""
    try:
        found = dict(compute())
    except KvplanError as error:
        return Outcome(record, "figures", DIFFERENT, dict(expected), f"refused: {error.message}")
    except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
        # One odd record must not end the comparison of the others.
        return Outcome(record, "figures", DIFFERENT, dict(expected), f"not understood: {error!r:.200}")
    verdict = EQUAL if found == dict(expected) else DIFFERENT
    return Outcome(record, "figures", verdict, dict(expected), found)


def refusal(record: str, message: str, compute: Callable[[], object]) -> Outcome:
    """A configuration that the engine refused: equal if kvplan refuses it too."""
    try:
        found = compute()
    except KvplanError as error:
        return Outcome(record, "refusal", EQUAL, message, error.message)
    return Outcome(record, "refusal", DIFFERENT, message, f"accepted: {found}")


def out_of_scope(record: str, rule: str, kind: str = "figures") -> Outcome:
    """A record that kvplan does not model, by a rule that is stated in words."""
    return Outcome(record, kind, OUT, rule=rule)
