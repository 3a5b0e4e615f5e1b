"""One model: its layer groups, counts and where the figures come from. No sizes in bytes are computed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kvplan.specs.base import (
    HF_PATTERN,
    LENIENT,
    Count,
    Dim,
    FloatDtype,
    Layers,
    Name,
    SchemaVersion,
    Spec,
    Texts,
    Tokens,
    problem,
)
from kvplan.specs.groups import LayerGroup
from kvplan.specs.placement import Every


class Params(Spec):
    """Parameter counts, plain integers."""

    total: Count
    """All parameters."""
    active: Count | None = None
    """Parameters used for one token; None: all of them (dense)."""


class Weights(Spec):
    """Weights as published, where they are not all in the native dtype."""

    bytes: Count
    """Bytes of all published weight tensors."""
    dtype: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    """Number type that most of them have, such as fp8_e4m3 or mxfp4."""


class Mtp(Spec):
    """Multi-token prediction layers; they hold a cache only when speculative decoding is on."""

    layers: Layers
    """Prediction layers."""
    cache_like: Annotated[tuple[Name, ...], LENIENT] = ()
    """Groups whose cache each of these layers repeats."""


class Provenance(Spec):
    """Where the figures come from."""

    confidence: Literal["verified", "single-source", "memory"]
    """verified: a real config copy or two independent sources."""
    sources: Texts
    """Plain names of the sources."""


class ModelSpec(Spec):
    """A model as far as its cache is concerned."""

    kvplan_spec: SchemaVersion
    """Version of this schema."""
    id: Name
    """Name on the command line; a shipped file has it as its stem."""
    hf_ids: Annotated[tuple[Annotated[str, Field(pattern=HF_PATTERN, max_length=200)], ...], LENIENT] = ()
    """Hugging Face ids that share this spec."""
    model_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] | None = None
    """Architecture as its config.json (`model_type`) or GGUF header (`general.architecture`) calls it; some engines
    treat architectures apart. It changes no byte that the mathematics needs."""
    params: Params | None = None
    """Parameter counts; None: not known (a config.json does not say), then `weights` or a GPU-less plan is needed."""
    max_context: Tokens
    """Longest context that the config allows, in tokens."""
    layers: Layers
    """Layers; the groups that are no overlay cover each exactly once."""
    native_dtype: FloatDtype
    """Number type of the 16-bit (or 32-bit) weights and of an unquantised cache."""
    layer_groups: Annotated[tuple[LayerGroup, ...], LENIENT, Field(max_length=1000)]
    """Layers by cache."""
    hidden_size: Dim | None = None
    """Width of the residual stream."""
    vocab_size: Annotated[int, Field(ge=1, le=2**30)] | None = None
    """Rows of the embedding table."""
    weights: Weights | None = None
    """Published weights, where they differ from params.total in the native dtype."""
    mtp: Mtp | None = None
    """Multi-token prediction layers, not part of `layers`."""
    provenance: Provenance | None = None
    """Where the figures come from; every shipped spec has it."""
    notes: Texts = ()
    """Remarks for the reader."""
    assumptions: Texts = ()
    """What an importer filled in or assumed; every plan of this spec repeats it."""

    def group(self, name: str) -> LayerGroup:
        """The layer group called `name`; KeyError if there is none."""
        for group in self.layer_groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def positions(self, group: LayerGroup) -> tuple[int, ...]:
        """Zero-based layer indices of a group of this spec, ascending."""
        placed = group.layers
        if isinstance(placed, tuple):
            return placed
        if isinstance(placed, Every):
            return tuple(i for i in range(placed.upto or self.layers) if i % placed.every in placed.at)
        if isinstance(placed, int):
            return tuple(range(placed))
        taken = {i for other in self._owners() if other.layers != "rest" for i in self.positions(other)}
        return tuple(i for i in range(self.layers) if i not in taken)

    def _owners(self) -> list[LayerGroup]:
        return [group for group in self.layer_groups if not group.overlay]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = self._check_names()
        for where, group in enumerate(self.layer_groups):
            self._check_placement(where, group)
        self._check_coverage()
        for at, name in self._references():
            if name not in names:
                raise problem("reference", f"no layer group is called {name!r}", at=at, name=name, known=tuple(names))
        return self

    def _check_names(self) -> list[str]:
        names: list[str] = []
        for where, group in enumerate(self.layer_groups):
            if group.name in names:
                text = f"the name {group.name!r} is taken by an earlier group; give each group its own name"
                raise problem("place", text, at=("layer_groups", where, "name"))
            names.append(group.name)
        return names

    def _references(self) -> Iterator[tuple[tuple[Any, ...], str]]:
        for where, group in enumerate(self.layer_groups):
            if group.kind == "none":
                for i, name in enumerate(group.reads):
                    yield ("layer_groups", where, "reads", i), name
        for i, name in enumerate(self.mtp.cache_like if self.mtp else ()):
            yield ("mtp", "cache_like", i), name

    def _check_placement(self, where: int, group: LayerGroup) -> None:
        at = ("layer_groups", where, "layers")
        placed = group.layers
        if isinstance(placed, tuple):
            if placed[-1] >= self.layers:
                raise problem("place", f"expected indices 0 to {self.layers - 1}, got {placed[-1]}", at=at)
        elif isinstance(placed, Every):
            if placed.upto and placed.upto > self.layers:
                text = f"expected at most the model's {self.layers} layers, got {placed.upto}"
                raise problem("place", text, at=(*at, "upto"))
            if not self.positions(group):
                raise problem("place", f"the pattern meets none of the model's {self.layers} layers", at=at)
        elif isinstance(placed, int):
            if not group.overlay and len(self._owners()) > 1:
                text = "a count is not enough where several groups own layers; expected [..], {every, at} or rest"
                raise problem("place", text, at=at)
            if placed != self.layers:
                raise problem("place", f"expected {self.layers}, the model's layers, got {placed}", at=at)
        elif group.overlay:
            raise problem("place", "an overlay cannot take the rest; expected a list or {every, at}", at=at)

    def _check_coverage(self) -> None:
        rests = [i for i, g in enumerate(self.layer_groups) if not g.overlay and g.layers == "rest"]
        if len(rests) > 1:
            raise problem("place", "only one group may take the rest", at=("layer_groups", rests[1], "layers"))
        owner: dict[int, str] = {}
        for where, group in enumerate(self.layer_groups):
            if group.overlay:
                continue
            placed = self.positions(group)
            if not placed:
                raise problem("place", "no layer is left for this group", at=("layer_groups", where, "layers"))
            for i in placed:
                if i in owner:
                    text = f"layer {i} belongs to group {owner[i]!r} already; a second cache needs overlay: true"
                    raise problem("place", text, at=("layer_groups", where, "layers"))
                owner[i] = group.name
        missing = [i for i in range(self.layers) if i not in owner]
        if missing:
            shown = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
            text = f"no group owns {len(missing)} of {self.layers} layers: {shown}"
            raise problem("place", text, at=("layer_groups",))
