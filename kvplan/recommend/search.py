"""Every choice for a request, or only those that can be among the best.

Pruned: a format of one tensor is left out where another of the same code width, the same residual and no more bytes
loses no more and is read no slower, since then it is so whatever the other tensor is stored in. Larger pages are left
out: they only add unfilled rows. The exhaustive search leaves out nothing; a test holds both to the same Pareto set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import parse_any
from kvplan.formats.layout import number_bits
from kvplan.memory.groups import DTYPES, roles
from kvplan.plan import PlanRequest, resolve
from kvplan.plan.layouts import shardings
from kvplan.recommend.bounds import NOISE
from kvplan.recommend.engine_offers import Offer, engine_offers
from kvplan.recommend.evidence import MEASURED, Evidence
from kvplan.recommend.scored import Scored, Scorer
from kvplan.recommend.space import K_FORMATS, KEPT, LATENT_FORMATS, LOW_K, LOW_V, PAGES, SENSITIVE, V_FORMATS
from kvplan.recommend.timemodel import measured_speeds, read_roof, tensor_speed
from kvplan.recommend.types import RecommendRequest
from kvplan.specs.device import DeviceSpec
from kvplan.specs.model import ModelSpec

Say = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """All choices that were computed, the unquantised cache of the first layout first, and what was refused."""

    choices: list[Scored]
    refused: dict[str, str]


class Search:
    """One request's choices."""

    def __init__(
        self, request: RecommendRequest, spec: ModelSpec, device: DeviceSpec, evidence: Evidence, scorer: Scorer
    ) -> None:
        self.request, self.spec, self.device, self.evidence, self.scorer = request, spec, device, evidence, scorer
        self.native = DTYPES[spec.native_dtype]
        self.present = roles(spec)
        skip = {"quality", "max_kl", "min_top1", "slo_itl_ms", "gpus", "concurrency", "tp"}
        self._base = request.model_dump(exclude=skip) | {"batch": request.concurrency}

    def run(self, exhaustive: bool = False, say: Say = lambda _: None) -> Found:
        """Compute them.

        Raises:
            UsageError, UnsupportedError: as `kvplan.plan.make_plan`, where not even the unquantised cache can be
                planned in any layout.
        """
        choices: list[Scored] = []
        refused: dict[str, str] = {}
        layouts = self.layouts()
        first: UsageError | UnsupportedError | None = None
        for layout in layouts:
            say(f"{len(choices):,} choices; layout {_words(layout)}")
            for name, fields in self._choices(layout, exhaustive):
                try:
                    choices.append(self.scorer.of(self._resolved(layout, fields)))
                except (UsageError, UnsupportedError) as error:
                    refused.setdefault(name, error.message)
                    first = first or error
        if not choices:
            raise first or UsageError(f"{self.spec.id} has no layout of {self.request.gpus} GPUs", "see kvplan layouts")
        planned = {_name(c) for c in choices}
        if self.request.engine:
            refused |= self._offers()[1]
        return Found(choices, {name: why for name, why in refused.items() if name not in planned})

    def layouts(self) -> list[dict[str, Any]]:
        """Layouts of the GPUs without pipeline stages, fewest ranks first; with --tp only those of that many.

        Raises:
            UsageError: the model allows none.
        """
        r = self.request
        found = [s for s in shardings(self.spec, r.gpus) if s["pp"] == 1 and r.tp in (None, s["tp"])]
        if not found and r.tp and r.gpus % r.tp:
            raise UsageError(f"{r.gpus} GPUs are no whole number of groups of tp {r.tp}", "give a multiple of --tp")
        # No layout is legal: planning this one says why.
        return found or [{"tp": r.tp or r.gpus}]

    def _choices(self, layout: dict[str, Any], exhaustive: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        if self.request.engine:
            for offer in self._offers()[0]:
                yield offer.name, offer.fields
            return
        pages, shown = PAGES if exhaustive else PAGES[:1], set(zip(LOW_K, LOW_V, strict=True))
        for formats, page in product(self._formats(layout, exhaustive), pages):
            plain = all(f == self.native for f in formats.values())
            whole = plain or "latent" in formats or (formats.get("k"), formats.get("v")) in shown
            for kept in ((),) if whole or (not exhaustive and self._hidden(formats)) else self._kept():
                rules = tuple(f"{where}:{self.native}" for where in kept)
                yield " / ".join(formats.values()) or "states", formats | {"page_size": page, "layers": rules}

    def _formats(self, layout: dict[str, Any], exhaustive: bool) -> Iterator[dict[str, str]]:
        """The unquantised cache first."""
        k = v = latent = (None,)  # type: tuple[str | None, ...]
        known = any(b.kind == MEASURED for b in self.evidence.bodies)
        if "k" in self.present:
            low_k, low_v = (LOW_K, LOW_V) if known else ((), ())
            k, v = (
                (self.native, *(formats if exhaustive else self._undominated(role, formats, layout)))
                for role, formats in (("k", (*K_FORMATS, *low_k)), ("v", (*V_FORMATS, *low_v)))
            )
        if "latent" in self.present:
            latent = (self.native, *LATENT_FORMATS)
        for one in product(k, v, latent):
            yield {role: f for role, f in zip(("k", "v", "latent"), one, strict=True) if f}
        if "k" in self.present and not known:
            for pair in zip(LOW_K, LOW_V, strict=True):
                yield {"k": pair[0], "v": pair[1]} | ({"latent": self.native} if "latent" in self.present else {})

    def _kept(self) -> tuple[tuple[str, ...], ...]:
        worst = self.evidence.worst_layers(SENSITIVE)
        rules = tuple(rule for rule in KEPT if len(rule) < self.spec.layers)
        return (*rules, (",".join(map(str, worst)),)) if worst else rules

    def _hidden(self, formats: dict[str, str]) -> bool:
        """Whether layers in 16 bit only take room: nothing that can be noticed is lost anyway."""
        if "k" not in formats:
            return False
        found = self.evidence.of(parse_any(formats["k"]).spelling, parse_any(formats["v"]).spelling)
        return found is not None and found.kl <= NOISE

    def _undominated(self, role: str, formats: Sequence[str], layout: dict[str, Any]) -> list[str]:
        """Formats of one tensor that may be part of a best choice."""
        other = "v" if role == "k" else "k"
        partners = (self.native, *(K_FORMATS + LOW_K if role == "v" else V_FORMATS + LOW_V))
        costs: dict[str, _Cost] = {}
        for f in formats:
            try:
                costs[f] = self._cost(role, f, layout, other, partners)
            except (UsageError, UnsupportedError):
                # It does not fit this model's heads; the exhaustive search refuses every pair with it.
                continue
        special = {part for key in measured_speeds() for part in key.split(" + ") if " + " in key}
        kept = []
        for i, (f, cost) in enumerate(costs.items()):
            # Of two that are alike in everything the first stays.
            beaten = any(c.beats(cost) and (j < i or not cost.beats(c)) for j, c in enumerate(costs.values()) if j != i)
            if cost.spelling in special or not beaten:
                kept.append(f)
        return kept

    def _cost(self, role: str, spelling: str, layout: dict[str, Any], other: str, partners: Sequence[str]) -> _Cost:
        resolved = self._resolved(layout, {role: spelling, other: self.native})
        groups = [g for g in resolved.groups if role in g.formats]
        tensor = groups[0].layout.tensor(role)
        speed = tensor_speed(tensor)
        echo = getattr(resolved.request, role)
        of = self.evidence.of
        pairs = [of(echo, p) if role == "k" else of(p, echo) for p in (parse_any(f).spelling for f in partners)]
        return _Cost(
            spelling=echo,
            shape=(number_bits(tensor.number), tensor.recent, tensor.flush, groups[0].layout.page_multiple),
            nbytes=tuple(g.layout.page_bytes(128 * g.layout.page_multiple) for g in groups)
            + tuple(g.layout.fixed_bytes("layer") for g in groups),
            kl=tuple(q.kl if q else None for q in pairs),
            fixed=speed.fixed_seconds if speed else None,
            slowness=1 / speed.roof_share if speed else None,
            least=speed.seconds(0.0, read_roof(self.device)) if speed else None,
        )

    def _offers(self) -> tuple[list[Offer], dict[str, str]]:
        return engine_offers(self.request, self.present, self.device)

    def _resolved(self, layout: dict[str, Any], fields: dict[str, Any]) -> Any:
        asked = PlanRequest.model_construct(**(_DEFAULTS | self._base | layout | fields))
        return resolve(asked, self.spec, self.device)


@dataclass(frozen=True)
class _Cost:
    """What a format of one tensor costs, whatever the other tensor is."""

    spelling: str
    shape: tuple[object, ...]
    nbytes: tuple[int, ...]
    kl: tuple[float | None, ...]
    """With each format of the other tensor: of pairs that were run it is not that of the parts."""
    fixed: float | None
    slowness: float | None
    least: float | None
    """Seconds of a cache that does not fill the GPU."""

    def beats(self, other: _Cost) -> bool:
        """No worse in anything that the figures of a pair depend on."""
        if self.shape != other.shape or any(a > b for a, b in zip(self.nbytes, other.nbytes, strict=True)):
            return False
        return (
            all(map(_at_most, self.kl, other.kl))
            and _at_most(self.fixed, other.fixed)
            and _at_most(self.slowness, other.slowness)
            and _at_most(self.least, other.least)
        )


def _at_most(mine: float | None, other: float | None) -> bool:
    """None stands for a figure that is not known, which is worse than any."""
    return other is None or (mine is not None and mine <= other)


_DEFAULTS = {name: f.default for name, f in PlanRequest.model_fields.items() if not f.is_required()}


def _words(layout: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in layout.items() if name != "pp")


def _name(c: Scored) -> str:
    chosen = c.resolved.engine
    parts = chosen.formats.values() if chosen else [f for f in c.formats if f]
    return " / ".join(dict.fromkeys(parts)) if chosen else " / ".join(parts) or "states"
