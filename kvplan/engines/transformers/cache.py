"""transformers' cache for one case: refusals, calls, and the parts of an allocation."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import some
from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.types import Case, EngineCache, EngineFigure
from kvplan.engines.transformers.layers import layer_tensors
from kvplan.engines.transformers.layouts import expands, native_layout
from kvplan.engines.transformers.quantised import check, residual_length
from kvplan.engines.transformers.rows import fullest_residual
from kvplan.engines.transformers.states import RWKV_SHIFTS, plain_type, state_layout
from kvplan.engines.transformers.stored import SOURCE, Stored
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part, total
from kvplan.memory.terms import logical_terms

NEWEST = "5.24.0"
_ROWS = ("conv_states", *RWKV_SHIFTS)
"""States that are rows of past tokens."""
_OWN_CACHE = ("minimax", "minimaxm1", "minimaxtext01")
_WITHOUT_LENGTH = ("mamba", "mamba2", "falconmamba", "rwkv", "rwkv7")
"""Architectures without attention whose code never asks the cache for its length."""
_MEASURED = (
    "qwen3next", "qwen35text", "olmohybrid", "kimilinear", "mamba", "mamba2", "falconmamba", "jamba", "falconh1",
    "granitemoehybrid", "bamba", "zamba2", "nemotronh", "lfm2", "zaya", "minimax", "recurrentgemma", "rwkv",
)  # fmt: skip
"""Model types whose states were measured."""


class TransformersCache(EngineCache):
    """Tensors of every layer after one call for the prompt and `decode_tokens` calls of one token."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.option = next((o for role, o in case.chosen.items() if role in ("k", "v", "latent")), "auto")
        if case.mtp:
            raise UnsupportedError("kvplan has no rule for prediction layers in transformers", "drop --mtp")
        self._check_groups()
        if case.options["cache_implementation"] == "static":
            self._check_static()
        if self.option != "auto":
            if any(g.role == "cross" for g in case.groups):
                raise UsageError("transformers refuses a quantised cache for encoder-decoder models", "drop --kv")
            check(case, self.option, self.calls(case.context), case.sequences)
        self.notes = tuple(self._notes())

    def _check_groups(self) -> None:
        groups = self.case.groups
        plain = plain_type(self.case)
        for g in groups:
            special = g.law.stride != 1 or (g.role in ("latent", "index") and g.law.law != "all")
            if special and plain != "deepseekv4":
                raise UnsupportedError(
                    f"kvplan has no rule for group {g.name} in transformers: compressed rows are known for deepseek_v4",
                    "plan without --engine",
                )
            if (g.role in ("state", "index") or special) and self.case.version != NEWEST:
                raise UnsupportedError(
                    f"kvplan knows states, index keys and compressed rows of transformers {NEWEST} only",
                    f"use --engine-version {NEWEST}",
                )
            # Raises where this version expands latents and their width is not known.
            if g.role == "latent":
                native_layout(self.case, g)
        pure = all(g.role == "state" for g in groups)
        if groups and pure and plain and plain not in _WITHOUT_LENGTH:
            raise UsageError(
                f"transformers cannot run {self.case.spec.model_type} with linear-attention layers only: its cache has "
                "no length",
                "give it an attention layer",
            )
        for g in groups:
            # Raises where the kind of state has not been read.
            if g.role == "state" and g.law.limit == 1:
                state_layout(self.case, g)

    def _check_static(self) -> None:
        most, plain = self.case.options["max_cache_len"], plain_type(self.case)
        if plain in _OWN_CACHE:
            raise UsageError("MiniMax uses a cache of its own, which is never static", "drop cache_implementation")
        if plain == "deepseekv4":
            raise UsageError("transformers has no static layers for compressed rows", "drop cache_implementation")
        if most is not None and self.case.context > most:
            raise UsageError(f"context {self.case.context:,} is above max_cache_len {most:,}", "raise max_cache_len")

    def _notes(self) -> list[str]:
        options, notes = self.case.options, []
        if options["cache_implementation"] == "static":
            notes.append("A static cache is allocated whole at the first call, for the batch as it is then.")
        else:
            last = options["decode_tokens"]
            notes.append(
                "transformers' tensors depend on the calls: here one for the prompt, then single tokens, "
                f"{last:,} of them (decode_tokens)."
            )
            if any(g.law.law in ("window", "chunk") for g in self.case.groups):
                notes.append(
                    "Windowed layers have W - 1 rows in a view of W rows; right after the prompt the view's storage is "
                    "the whole prompt: decode_tokens=0 plans for that moment."
                )
        if self.option != "auto":
            notes.append(
                "Every step dequantises all rows of a layer: the peak is not lower than one layer in full precision."
            )
        if any(g.role == "state" for g in self.case.groups) and plain_type(self.case) not in _MEASURED:
            model = self.case.spec.model_type or self.case.spec.id
            notes.append(f"States of {model} were not measured in transformers: taken as other models' of their kind.")
        return notes

    def calls(self, context: int) -> tuple[int, ...]:
        """The calls that fill a cache with `context` tokens: the prompt, then single tokens."""
        single = min(self.case.options["decode_tokens"], max(context - 1, 0))
        prompt = context - single
        return (*((prompt,) if prompt else ()), *((1,) * single))

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per group: the storage behind its tensors after `calls(context)`.

        Pieces that fill and empty again (rows that wait to be quantised, a compressor's buffer) count as the most that
        they have held: the request needed it.
        """
        calls = self.calls(context)
        made = [self._part(g, calls, sequences, context, fullest=True) for g in self.case.groups]
        if self.option == "auto":
            return tuple(made)
        length = residual_length(self.case, self.option)
        best = calls[: fullest_residual(calls, length, number_of(self.case.version))]
        most = [self._part(g, best, sequences, context, fullest=True) for g in self.case.groups]
        return tuple(max(a, b, key=lambda p: total(p.allocated)) for a, b in zip(made, most, strict=True))

    def after(self, calls: Sequence[int], sequences: int) -> tuple[Part, ...]:
        """What every group holds after exactly these calls."""
        tokens = sum(calls)
        return tuple(self._part(g, tuple(calls), sequences, tokens, fullest=False) for g in self.case.groups)

    def tensors(self, calls: Sequence[int], sequences: int) -> tuple[tuple[CacheGroup, tuple[Stored, ...]], ...]:
        """Every group with the tensors of one of its layers after these calls: `Stored.tensor` and `.storage`."""
        return tuple(
            (g, layer_tensors(self.case, self.option, g, tuple(calls), sequences, False)) for g in self.case.groups
        )

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Tensor bytes of one sequence, which a view's storage may exceed, and storage right after the prompt."""
        calls = self.calls(context)
        views = sum(s.tensor(g, 1).nbytes for g, made in self.tensors(calls, 1) for s in made if not s.constant)
        prompt = sum(total(p.allocated) for p in self.after(calls[:1], 1))
        return (
            EngineFigure("tensor bytes of one sequence", views, SOURCE),
            EngineFigure("storage right after the prompt", prompt, SOURCE),
        )

    def _part(self, group: CacheGroup, calls: tuple[int, ...], sequences: int, tokens: int, *, fullest: bool) -> Part:
        stored = layer_tensors(self.case, self.option, group, calls, sequences, fullest)
        held = some(*(s.storage(group, sequences) for s in stored if not s.alias and not s.constant))
        ahead = self._ahead(group, stored, tokens, sequences)
        logical = sum(t.nbytes for terms in logical_terms(group, tokens, sequences).values() for t in terms)
        if group.role == "state" and group.law.limit == 1:
            return Part(group.name, held, **_by_state(group, stored, sequences))
        gap = total(held) - total(ahead) - logical
        label = self._label(group, gap > 0)
        named = some(Product(label, (Factor("bytes", abs(gap), "storage - logical"),), "engine rule", SOURCE))
        return Part(group.name, held, ahead, saves=named if gap < 0 else (), padding=named if gap > 0 else ())

    def _ahead(self, group: CacheGroup, stored: tuple[Stored, ...], tokens: int, sequences: int) -> tuple[Product, ...]:
        """Rows of a static cache for tokens that are not there yet."""
        if self.case.options["cache_implementation"] != "static" or group.law.law == "encoder" or group.role == "state":
            return ()
        width = Factor("bytes", sum(s.width.value for s in stored if not s.constant), group.origin.width)
        free = Factor("free rows", max(stored[0].held.value - group.law.rows(tokens), 0))
        layers = Factor("layers", group.layers, group.origin.layers)
        batch = Factor("sequences", sequences, group.origin.sequences)
        return some(Product("rows ahead", (layers, batch, free, width), "engine rule", SOURCE))

    def _label(self, group: CacheGroup, more: bool) -> str:
        if group.role == "latent" and expands(self.case):
            return "keys and values of every head instead of the latent"
        if self.option != "auto":
            return "recent rows in the model's dtype, packing" if more else "rows quantised at once"
        if group.law.stride > 1 or group.role == "state":
            return "views of the last call" if more else "open groups in the model's dtype, complete rows only"
        return "rows behind a view" if more else "rows outside the window"


def _by_state(group: CacheGroup, stored: tuple[Stored, ...], sequences: int) -> dict[str, tuple[Product, ...]]:
    """Recurrent and convolution states against the mathematics' own: wider ones are padding, narrower ones saved."""
    made: dict[str, list[Product]] = {"padding": [], "saves": []}
    layers = Factor("layers", group.layers, group.origin.layers)
    batch = Factor("sequences", sequences, group.origin.sequences)
    for kind in ("recurrent", "conv"):
        mine = [s for s in stored if (s.name in _ROWS) == (kind == "conv")]
        gap = sum(s.width.value for s in mine) - sum(p.fixed_bytes(1) for p in group.layout.planes if p.name == kind)
        why = Factor("bytes", abs(gap), ", ".join(s.width.source for s in mine) + " in transformers")
        label = f"{kind} states {'wider' if gap > 0 else 'narrower'} than the model's own"
        made["padding" if gap > 0 else "saves"].append(Product(label, (layers, batch, why), "engine rule", SOURCE))
    return {kind: some(*terms) for kind, terms in made.items()}
