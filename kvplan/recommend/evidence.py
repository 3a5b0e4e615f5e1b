"""What is known about the quality of a format: KL by tensor, each figure with the kind of evidence that it is.

A body of evidence is one measurement or prediction. Best first: a `kvplan quality` report of the model itself, a
prediction from the model's own captured tensors, the project's report of SmolLM2-135M (`evidence.json`, written by
tools/collect_evidence.py), and last the arithmetic of the format alone. A pair that was run comes first; else K and
V make `kvplan.loss.together`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from math import sqrt
from operator import add
from pathlib import Path
from statistics import median
from typing import Any, Literal

from kvplan.formats.grammar import PLAIN, Named, parse_any, parse_format
from kvplan.formats.named import SPELLINGS
from kvplan.loss import FACTOR, LEVEL_FACTOR, PARTS_FACTOR, together
from kvplan.recommend.theory import theory_kl
from kvplan.specs.model import ModelSpec

Kind = Literal[
    "measured on this model", "predicted from this model's tensors", "from another model", "format theory only"
]
MEASURED: Literal["measured on this model"] = "measured on this model"
PREDICTED: Literal["predicted from this model's tensors"] = "predicted from this model's tensors"
OTHER: Literal["from another model"] = "from another model"
THEORY: Literal["format theory only"] = "format theory only"
KINDS: tuple[Kind, ...] = (MEASURED, PREDICTED, OTHER, THEORY)
"""Best first; the words of `kvplan quality`."""
FACTORS: dict[str, float] = {MEASURED: PARTS_FACTOR, PREDICTED: LEVEL_FACTOR, OTHER: 3.3, THEORY: 10.0}
"""How far KL may lie from the figure, either way. Measured: two codecs or machines agree within 10%. Predicted:
`kvplan.loss.FACTOR` where measured formats of the same tensor set the level, as in `kvplan.quality.parts`. Another
model: 10 of 11 formats of Gemma-3-270m cost at most 3.3 times their KL on SmolLM2-135M (0.6 to 3.2). Theory: the spread
of Gaussian error against KL over the project's 49 formats."""
BY_TOKEN_FACTOR = 10.0
"""The eleventh: int8 with one scale per token costs Gemma-3-270m (head_dim 256, channels up to 29 times the median) 9.7
times what it costs SmolLM2-135M."""
STORED = Path(__file__).with_name("evidence.json")
STUDIED_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Body:
    """One measurement or prediction.

    Attributes:
        source: what it is of, in words.
        parts: (role, spelling) to KL with only that tensor stored; roles k, v, latent.
        pairs: (K, V) to (KL, share of equal top tokens) of runs with both; None: not known.
        layers: layer to its share of K's squared error, where that was looked at.
    """

    kind: Kind
    source: str
    parts: Mapping[tuple[str, str], float]
    pairs: Mapping[tuple[str, str], tuple[float, float | None]] = field(default_factory=dict)
    layers: Mapping[int, float] = field(default_factory=dict)

    def part(self, role: str, spelling: str) -> float | None:
        """KL of one tensor; where its scales lie, and in how many bits of 16 and more, makes no difference."""
        found = self.parts.get((role, spelling))
        return self.parts.get((role, bare(spelling))) if found is None else found

    def pair(self, k: str, v: str) -> tuple[float, float | None] | None:
        """KL of both together as it was run; of a format with parts of its own (q4_0) not that of a likeness."""
        own = any(bare(f) != f and (role, f) in self.parts for role, f in (("k", k), ("v", v)))
        return self.pairs.get((k, v)) or (None if own else self.pairs.get((bare(k), bare(v))))


@dataclass(frozen=True)
class Quality:
    """What a choice of formats costs: mean KL in nats per token with its interval, and the share of equal top tokens.

    Attributes:
        source: what it was measured or predicted on.
    """

    kl: float
    low: float
    high: float
    top1: float
    evidence: Kind
    source: str


@dataclass(frozen=True)
class _Known:
    """KL of one tensor, or of a pair that was run (with its `top1`), and how far it may lie from that either way."""

    kl: float
    kind: Kind
    source: str
    factor: float
    top1: float | None = None


LOSSLESS = Quality(0.0, 0.0, 0.0, 1.0, MEASURED, "16 bit is the model's own cache")


class Evidence:
    """All that is known, for one model.

    Args:
        bodies: of this model (reports, predictions); what ships with kvplan is added.
    """

    def __init__(self, spec: ModelSpec, bodies: Sequence[Body] = ()) -> None:
        own = [shipped(MEASURED)] if spec.id == STUDIED_MODEL else []
        self.spec = spec
        self.bodies = sorted([*bodies, *own, shipped(OTHER), shipped_predictions()], key=lambda b: KINDS.index(b.kind))
        self._known: dict[tuple[str, ...], Quality | None] = {}

    def of(self, k: str | None, v: str | None, latent: str | None = None) -> Quality | None:
        """What formats cost in every layer; None: not known, see `why_unknown`."""
        key = (k or "", v or "", latent or "")
        if key not in self._known:
            self._known[key] = self._of(k, v, latent)
        return self._known[key]

    def _of(self, k: str | None, v: str | None, latent: str | None) -> Quality | None:
        asked = [(role, f) for role, f in (("k", k), ("v", v), ("latent", latent)) if f and f not in PLAIN]
        if not asked:
            return LOSSLESS
        whole = self._whole(k, v)
        found = [self._part(role, f) for role, f in asked]
        parts = [part for part in found if part]
        kind = max((part.kind for part in parts), key=KINDS.index, default=THEORY)
        if whole and (len(parts) < len(found) or KINDS.index(whole.kind) <= KINDS.index(kind)):
            parts, kind = [whole], whole.kind
        elif len(parts) < len(found):
            return None
        # Errors on tensors were fitted to KL as a sum.
        join = add if all(part.kind == PREDICTED for part in parts) else together
        kl, low, high = (reduce(join, (part.kl * part.factor**way for part in parts)) for way in (0, -1, 1))
        top1 = next((part.top1 for part in parts if part.top1 is not None), top1_of(kl))
        return Quality(kl, low, high, top1, kind, "; ".join(dict.fromkeys(part.source for part in parts)))

    def kept(self, quality: Quality, layers: frozenset[int], every: Sequence[int]) -> Quality:
        """The same with some of the layers in 16 bit: each layer counts alike, or as its own tensors say."""
        shares = next((b.layers for b in self.bodies if b.layers), {})
        usual = sum(shares.values()) / len(shares) if shares else 1.0
        weight = {i: shares.get(i, usual) for i in every}
        share = sum(w for i, w in weight.items() if i not in layers) / sum(weight.values())
        basis = "K's error by layer" if shares else "every layer taken to count alike"
        kl = quality.kl * share
        return replace(
            quality,
            kl=kl,
            low=quality.low * share,
            high=quality.high,
            top1=max(quality.top1, top1_of(kl)),
            source=f"{quality.source}; {len(layers)} layers in 16 bit: {basis}",
        )

    def worst_layers(self, count: int) -> tuple[int, ...]:
        """The layers whose K suffers most, by this model's own tensors; nothing without those."""
        shares = next((b.layers for b in self.bodies if b.layers and b.kind != OTHER), {})
        return tuple(sorted(sorted(shares, key=lambda i: -shares[i])[:count]))

    def why_unknown(self, k: str | None) -> str:
        """Why `of` knows nothing of a choice."""
        if k and self._unlike(k):
            return f"{self.spec.id} has a bias on its keys: fp8 and plain integer K broke this family (Qwen2.5)"
        return "nothing is known of its quality"

    def _part(self, role: str, spelling: str) -> _Known | None:
        for body in self.bodies:
            if body.kind == OTHER and role == "k" and self._unlike(spelling):
                return None
            found = body.part(role, spelling)
            if found is not None:
                level = self._level(role, body) if body.kind == PREDICTED else None
                if level is not None:
                    return _Known(level * found, PREDICTED, f"{body.source}, at the level of measured formats", FACTOR)
                return _Known(found, body.kind, body.source, _factor(body.kind, spelling))
        guess = theory_kl(role, spelling)
        return None if guess is None else _Known(guess, THEORY, "Gaussian error of the format", FACTORS[THEORY])

    def _level(self, role: str, predicted: Body) -> float | None:
        """Median of measured KL over what tensors say of the same formats of K, of V: texts differ in it."""
        found = {
            f: kl / predicted.parts[role, f] for b in reversed(self.bodies) if b.kind == MEASURED
            for (of, f), kl in b.parts.items() if of == role and f not in PLAIN and predicted.parts.get((role, f))
        }  # fmt: skip
        return median(found.values()) if found else None

    def _whole(self, k: str | None, v: str | None) -> _Known | None:
        for body in self.bodies if k and v else ():
            assert k and v
            if body.kind == OTHER and self._unlike(k):
                return None
            found = body.pair(k, v)
            if found is not None:
                return _Known(found[0], body.kind, body.source, _factor(body.kind, k, v), found[1])
        return None

    def _unlike(self, k: str) -> bool:
        """Whether other models' evidence says nothing of this K format for this model."""
        return k_sensitive(self.spec) and not k_precise(k)


def k_sensitive(spec: ModelSpec) -> bool:
    """Keys with a bias in the Qwen2 family: fp8 K took Qwen2.5-7B from perplexity 214 to 1,058 and GSM8K to 2%, 3-bit K
    from 7.43 to 2,887; K in 16 bit or q8_0 was as good as before (knlp.io; verl #4435; TheTom/turboquant #27, #54)."""
    return (spec.model_type or "").startswith("qwen2") and has_k_bias(spec)


def has_k_bias(spec: ModelSpec) -> bool:
    """Whether some layers add a constant to every key and do not normalise it away."""
    return any(g.kind == "attention" and g.k_bias and not g.qk_norm for g in spec.layer_groups)


def k_precise(spelling: str) -> bool:
    """Whether a K format keeps apart channels of very different size: 16 bit, or int8 in small groups of them."""
    f = parse_any(spelling)
    if isinstance(f, Named):
        if f.name not in SPELLINGS:
            return False
        f = parse_format(SPELLINGS[f.name])
    return f.number in PLAIN or (f.number == "int8" and f.group > 0 and f.scale != "e8m0")


def top1_of(kl: float) -> float:
    """Share of equal top tokens that goes with a KL: 1 - sqrt(KL) / 2, within 0.05 over the stored 34 formats."""
    return max(0.0, 1 - sqrt(kl) / 2)


@cache
def bare(spelling: str) -> str:
    """A spelling without what changes no value: packing, and 16 or 32 bits of a scale."""
    f = parse_any(spelling)
    if isinstance(f, Named):
        if f.name not in SPELLINGS:
            return f.name
        f = parse_format(SPELLINGS[f.name])
    usual = "fp32" if f.is_static else "fp16"
    scale = usual if f.scale in ("fp16", "bf16", "fp32", "model") else f.scale
    return replace(f, pack="", row=False, flat=False, scale=scale).spelling if f.number not in PLAIN else f.spelling


def _factor(kind: Kind, *formats: str) -> float:
    return BY_TOKEN_FACTOR if kind == OTHER and any(map(_one_scale_per_token, formats)) else FACTORS[kind]


def _one_scale_per_token(spelling: str) -> bool:
    f = parse_any(bare(spelling))
    return not isinstance(f, Named) and f.number.startswith("int") and f.granularity == "token"


@cache
def shipped(kind: Kind) -> Body:
    """The stored report of SmolLM2-135M, with what an earlier study measured of ggml's and TurboQuant's formats."""
    data = _stored()
    parts = {(role, f): kl for role in ("k", "v") for f, kl in data["measured"][role].items()}
    pairs = {(k, v): (kl, top1) for k, v, kl, top1 in data["pairs"]}
    parts |= {(role, f): kl for role in ("k", "v") for f, kl in data["study"][role].items()}
    return Body(kind, data["source"], parts, pairs)


@cache
def shipped_predictions() -> Body:
    """Formats that the report lacks, predicted from SmolLM2-135M's captured tensors."""
    data = _stored()
    return Body(
        OTHER,
        data["tensors"],
        {(role, f): kl for role in ("k", "v") for f, kl in data["predicted"][role].items()},
    )


@cache
def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found
