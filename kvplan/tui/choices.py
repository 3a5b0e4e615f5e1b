"""What the form holds, as texts, and the request that it means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines import engine_names
from kvplan.errors import KvplanError
from kvplan.plan import PlanRequest
from kvplan.recommend.offers import format_fields, formats, takes_both, versions
from kvplan.specs.load import list_devices, load_model
from kvplan.units import parse_count

NONE, DEFAULT, SAME, NEWEST = "none", "default", "as K", "newest"
CONTEXTS = ("1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "200k", "256k", "512k", "1M", "2M", "4M", "8M", "10M")
BATCHES = ("1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1k", "2k", "4k")
RANKS = ("1", "2", "4", "8", "16", "32", "64")
SWITCH = ("no", "yes")


@dataclass(frozen=True, slots=True)
class Choices:
    """The form. Each field is the text that it shows."""

    model: str
    gpu: str = "h100-80gb"
    engine: str = NONE
    version: str = NEWEST
    context: str = "32k"
    batch: str = "1"
    k: str = DEFAULT
    v: str = SAME
    tp: str = "1"
    pp: str = "1"
    dp: str = "1"
    beyond_max: str = "no"

    def change(self, name: str, value: str) -> Choices:
        """The form with one field changed; formats and versions of another engine go back to the default."""
        changed = replace(self, **{name: value})
        if name == "engine" and value != self.engine:
            return replace(changed, version=NEWEST, k=DEFAULT, v=SAME)
        return changed

    def request(self) -> PlanRequest:
        """What is asked.

        Raises:
            KvplanError: a text that is no number, or a model that is not known.
        """
        engine = _asked(self.engine, NONE)
        spec = load_model(self.model)
        own: dict[str, Any] = dict(format_fields(spec, engine, _asked(self.k, DEFAULT), _asked(self.v, SAME)))
        numbers: dict[str, Any] = {
            name: parse_count(getattr(self, name), name) for name in ("context", "batch", "tp", "pp")
        }
        fields: dict[str, Any] = {
            "gpu": _asked(self.gpu, NONE),
            "engine": engine,
            "engine_version": _asked(self.version, NEWEST) if engine else None,
            "dp": None if self.dp == "1" else parse_count(self.dp, "dp"),
            "beyond_max": self.beyond_max == "yes",
        }
        return PlanRequest(model=self.model, **fields, **numbers, **own)

    def offered(self, name: str) -> tuple[str, ...]:
        """The values to choose from in a field; only models, counts and formats may also be typed."""
        engine = _asked(self.engine, NONE)
        if name in ("k", "v"):
            return self._formats(name, engine)
        if name == "version":
            return (NEWEST, *versions(engine))
        fixed = {
            "gpu": (NONE, *list_devices()),
            "engine": (NONE, *engine_names()),
            "context": CONTEXTS,
            "batch": BATCHES,
            "beyond_max": SWITCH,
        }
        return fixed.get(name, RANKS)

    def _formats(self, name: str, engine: str | None) -> tuple[str, ...]:
        first = DEFAULT if name == "k" else SAME
        try:
            spec, version = load_model(self.model), _asked(self.version, NEWEST)
            own = () if name == "v" and not takes_both(spec, engine) else formats(spec, engine, version)
        except KvplanError:
            # The plan says what is wrong; until then nothing is offered.
            own = ()
        return (first, *own)


def _asked(text: str, unset: str) -> str | None:
    return None if text == unset else text
