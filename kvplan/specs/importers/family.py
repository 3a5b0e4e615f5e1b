"""What a family of architectures is: a word for each layer, and for each word the caches that such a layer keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvplan.specs.importers.fields import YAML_HINT, Fields
from kvplan.specs.importers.figure import LAYERS, Figure
from kvplan.specs.importers.result import How

T = TypeVar("T")

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
INDEXED = "indexed_attention"
CONV = "conv"
HYBRID = "hybrid"
NONE = "none"

LEGACY = {
    "attention": FULL,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "recurrent": LINEAR,
    "deepseek_sparse_attention": INDEXED,
    "minimax_m3_sparse": INDEXED,
    "moe": NONE,
    "mlp": NONE,
    "dense": NONE,
    "-": NONE,
}
"""Older words for a layer to the ones used here."""
LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@dataclass(frozen=True, slots=True)
class Part:
    """One cache of one layer, as a layer group of the spec without its layers.

    Attributes:
        name: what its group is called.
        body: the keys of the group; numbers are `Figure`s.
        reads: for a layer without a cache, the layers whose caches it reads.
        placed: (how, source) of which layers have it, where that is not the layer's word.
    """

    name: str
    body: dict[str, Any]
    reads: tuple[int, ...] = ()
    placed: tuple[How, str] | None = None


NO_CACHE = Part("none", {"kind": "none"})
"""A layer without any cache: feed-forward only."""


@dataclass(frozen=True, slots=True)
class Words:
    """The word of every layer, and where the words come from."""

    words: list[str]
    how: How
    source: str


Maker = Callable[[Fields, int], tuple[Part, ...]]
"""The caches of one layer: the first is the layer's own, the others lie over it."""
Rule = Callable[[Fields, int], Words]
"""The words of all layers, where the file does not list them."""


def layer_count(cfg: Fields) -> Figure:
    """How many layers the decoder has."""
    return cfg.whole(*LAYER_NAMES, high=LAYERS, default=False)


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures that differ only in numbers.

    Attributes:
        rule: words of the layers where no list is given.
        makers: word to the caches of such a layer; any other word is refused.
        count: the number of layers.
        lists: fields that list the words.
        tail: the list may go on with the layers of multi-token prediction.
        sharing: layer to the layers whose cache it reads instead of keeping one.
        shared_by: the field that says so.
        renames: words that mean another word in this family only.
        ends_full: the class makes the last layer full, whatever its pattern says.
    """

    rule: Rule
    makers: Mapping[str, Maker]
    count: Callable[[Fields], Figure] = layer_count
    lists: tuple[str, ...] = ("layer_types",)
    tail: bool = False
    sharing: Callable[[Fields, list[str]], dict[int, tuple[int, ...]]] | None = None
    shared_by: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)
    ends_full: bool = False

    def layer_words(self, cfg: Fields, layers: int) -> Words:
        """The word of every layer, each one known."""
        for name in self.lists:
            given = cfg.words(name)
            if given is not None:
                given = fitted(cfg, name, given, layers, tail=self.tail)
                return Words(self._known(cfg, name, given), "read", cfg.prefix + name)
        made = self.rule(cfg, layers)
        return Words(self._known(cfg, made.source, made.words), made.how, made.source)

    def _known(self, cfg: Fields, name: str, words: list[str]) -> list[str]:
        found = []
        for i, word in enumerate(words):
            kind = word if word in self.makers else self.renames.get(word, LEGACY.get(word, word))
            if kind not in self.makers:
                cfg.refuse(
                    f"{name}[{i}]",
                    f"unknown layer type {word[:40]!r} for model_type {cfg.model_type}, "
                    f"expected one of {', '.join(self.makers)}",
                    f"kvplan does not guess what an unknown layer keeps; {YAML_HINT}",
                )
            found.append(kind)
        if self.ends_full and found[-1] != FULL:
            cfg.note(f"{cfg.model_type} makes its last layer full attention, whatever its layer types say.")
            found[-1] = FULL
        return found


def fitted(cfg: Fields, name: str, given: list[T], layers: int, *, tail: bool = False) -> list[T]:
    """A list with one entry per layer; prediction layers may follow where the format is known to do that."""
    extra = len(given) - layers
    if extra == 0:
        return given
    if tail and 0 < extra <= max(1, mtp_layers(cfg) or 0):
        cfg.note(f"{name} has {extra} more entries than layers: those of multi-token prediction, left out.")
        return given[:layers]
    return cfg.refuse(name, f"expected {layers} entries, one per layer, got {len(given)}")


MTP_NAMES = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "num_mtp_layers",
    "_num_mtp_layers",
    "mtp_num_layers",
)


def mtp_layers(cfg: Fields) -> Figure | None:
    """Multi-token prediction layers, or None."""
    for name in MTP_NAMES:
        if cfg.has(name):
            return cfg.maybe(name, high=LAYERS)
    return None
