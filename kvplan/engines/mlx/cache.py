"""The cache of MLX-LM for one case: which buffer each group has, and what it holds after the calls."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.breakdown import Factor, Product
from kvplan.engines.mlx.rows import STEP, chunked_rows, growing_rows, quantised, rotating_rows
from kvplan.engines.shared.paged import bytes_factor, engine_product, some, state_bytes
from kvplan.engines.shared.types import Case, EngineCache, EngineFigure
from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import Format
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.memory.parts import Part, total
from kvplan.memory.terms import packed_rows
from kvplan.units import align_up

CACHE = "MLX-LM 0.32.2, mlx_lm/models/cache.py"
GENERATE = "MLX-LM 0.32.2, mlx_lm/generate.py: generate_step"


class MlxCache(EngineCache):
    """Buffers as they stand after a prompt in pieces of `prefill_step_size` and `decode_tokens` single tokens."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.bits = next((o for role, o in case.chosen.items() if role in ("k", "v") and o != "auto"), None)
        has_states = any(g.role == "state" or g.law.law != "all" for g in case.groups)
        self.max_size = None if has_states else case.options["max_kv_size"]
        self._check()
        step, last = case.options["prefill_step_size"], case.options["decode_tokens"]
        notes = [
            f"MLX-LM's buffers depend on the calls: a prompt in pieces of {step:,} tokens (prefill_step_size), then "
            f"single tokens, {last:,} of them (decode_tokens; the prompt's last token always comes alone)."
        ]
        if case.options["max_kv_size"] and has_states:
            notes.append("max_kv_size has no effect: models with windows or states make their own caches.")
        if self.bits is not None and case.context < case.options["quantized_kv_start"]:
            notes.append(
                f"Nothing is quantised yet: MLX-LM converts from {case.options['quantized_kv_start']:,} tokens on "
                "(quantized_kv_start)."
            )
        if self.bits is not None:
            notes.append("mlx_lm.server with --kv-bits runs one request at a time.")
        if any(g.role == "state" for g in case.groups):
            notes.append("States lie in an ArraysCache as the model's mathematics has them, whatever the length.")
        self.notes = tuple(notes)

    def _check(self) -> None:
        options, groups = self.case.options, self.case.groups
        if self.case.mtp:
            raise UnsupportedError("kvplan has no rule for prediction layers in MLX-LM", "drop --mtp")
        if options["decode_tokens"] < 1:
            raise UsageError("decode_tokens is at least 1: the prompt's last token comes alone", "use decode_tokens=1")
        if options["prefill_step_size"] % STEP:
            raise UnsupportedError(
                f"kvplan has rules for a prefill_step_size that is a multiple of {STEP} only",
                f"use {align_up(options['prefill_step_size'], STEP)}",
            )
        for g in groups:
            if g.role == "cross" or g.law.stride != 1 or (g.law.law == "ring" and g.law.limit > 1):
                raise UnsupportedError(
                    f"kvplan has no rule for group {g.name} ({g.role}) in MLX-LM", "plan without --engine"
                )
        if self.bits is None:
            return
        rotating = [g.name for g in groups if g.law.law == "window"]
        if self.max_size is not None:
            rotating = [g.name for g in groups]
        if rotating and self.case.context >= options["quantized_kv_start"]:
            raise UsageError(
                f"MLX-LM cannot quantise a rotating cache (group {rotating[0]}): --kv-bits fails at "
                f"{options['quantized_kv_start']:,} tokens",
                "drop --kv" + (", or max_kv_size" if self.max_size is not None else ""),
            )

    def calls(self, context: int) -> tuple[int, ...]:
        """The calls that fill a cache with `context` tokens: the prompt in pieces, then single tokens."""
        step = self.case.options["prefill_step_size"]
        single = min(self.case.options["decode_tokens"], context)
        whole, rest = divmod(context - single, step)
        return (*((step,) * whole), *((rest,) if rest else ()), *((1,) * single))

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per group, after `calls(context)`; a cache that was converted counts as the most it has held."""
        calls = self.calls(context)
        return tuple(self._part(g, calls, sequences, fullest=True) for g in self.case.groups)

    def after(self, calls: Sequence[int], sequences: int) -> tuple[Part, ...]:
        """What every group holds after exactly these calls."""
        return tuple(self._part(g, tuple(calls), sequences, fullest=False) for g in self.case.groups)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Bytes of one sequence, and right after its prompt, before the single tokens."""
        prompt = tuple(n for n in self.calls(context) if n > 1)
        held = (sum(total(p.allocated) for p in self.after(calls, 1)) for calls in (self.calls(context), prompt))
        names = ("nbytes of one sequence", "nbytes right after the prompt")
        return tuple(EngineFigure(name, value, CACHE) for name, value in zip(names, held, strict=True))

    def rows(self, group: CacheGroup, calls: Sequence[int], fullest: bool = False) -> int:
        """Rows of one sequence in a layer's buffer after these calls.

        Args:
            fullest: for a buffer that is cut again and again, its largest size between two cuts.
        """
        if group.law.law == "window":
            return rotating_rows(calls, group.law.limit)
        if group.law.law == "chunk" and fullest:
            return min(growing_rows(calls), group.law.limit + STEP)
        if group.law.law == "chunk":
            return chunked_rows(calls, group.law.limit)
        return growing_rows(calls) if self.max_size is None else rotating_rows(calls, self.max_size)

    def _part(self, group: CacheGroup, calls: tuple[int, ...], sequences: int, *, fullest: bool) -> Part:
        if group.role == "state":
            return Part(group.name, some(engine_product("states", group, sequences, state_bytes(group), source=CACHE)))
        start = self.case.options["quantized_kv_start"]
        now = self._held(group, group.layout, self.rows(group, calls, fullest), sequences, "rows")
        if self.bits is not None and group.layout.tensors[0].number.startswith("int"):
            plain = native_layout(group, DTYPES[self.case.spec.native_dtype])
            before = calls if not quantised(calls, start) else self.calls(max(start - 1, 0))
            unconverted = self._held(group, plain, self.rows(group, before), sequences, "rows not yet quantised")
            if not quantised(calls, start) or (fullest and unconverted.nbytes > now.nbytes):
                return self._unconverted(group, unconverted, sum(calls), sequences)
        return self._differences(group, now, calls, sequences, self.rows(group, calls, fullest))

    def _unconverted(self, group: CacheGroup, held: Product, tokens: int, sequences: int) -> Part:
        """Full-precision rows where the format promises fewer bytes."""
        needed = engine_product(
            "rows quantised", group, sequences, *_rows(group.layout, packed_rows(group, tokens)), source=CACHE
        )
        spare = max(held.nbytes - needed.nbytes, 0)
        extra = Product("full precision before quantized_kv_start", (Factor("bytes", spare),), "engine rule", GENERATE)
        return Part(group.name, some(held), padding=some(extra))

    def _differences(self, group: CacheGroup, held: Product, calls: tuple[int, ...], sequences: int, rows: int) -> Part:
        """Rows ahead of the tokens are reserved; rows of a window that max_kv_size leaves out are saved."""
        tokens = sum(calls)
        needed = packed_rows(group, tokens)
        ahead = Factor("rows", max(rows - max(needed, min(tokens, rows)), 0), f"{rows:,} - {tokens:,}")
        beyond = Factor("rows", max(min(tokens, rows) - needed, 0), "kept until the next call")
        short = Factor("rows", max(needed - rows, 0), f"max_kv_size {rows:,}")
        made = [
            engine_product(label, group, sequences, count, bytes_factor(group, 1), source=CACHE)
            for label, count in (("rows ahead", ahead), ("rows of the last call", beyond), ("rows left out", short))
        ]
        return Part(group.name, some(held), reserved=some(made[0]), padding=some(made[1]), saves=some(made[2]))

    def _held(self, group: CacheGroup, layout: Layout, rows: int, sequences: int, label: str) -> Product:
        return engine_product(label, group, sequences, *_rows(layout, rows), source=CACHE)


def _rows(layout: Layout, rows: int) -> tuple[Factor, Factor]:
    return Factor("rows", rows), Factor("bytes", layout.page_bytes(1))


def native_layout(group: CacheGroup, native: str) -> Layout:
    """The rows of a group in the model's own dtype."""
    plain = [Tensor(t.role, Format(native), t.dim) for t in group.layout.tensors]
    return bind(plain, group.layout.heads, native)
