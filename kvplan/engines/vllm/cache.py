"""vLLM's cache of one rank: blocks of the shared pool for every page group, and one null block."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import some
from kvplan.engines.shared.types import Case, EngineCache, EngineFigure
from kvplan.engines.vllm.backends import ORDER, SIZES
from kvplan.engines.vllm.blocks import (
    CROSS,
    EVERY_TOKEN,
    INTERFACE,
    MAMBA,
    LayerSpec,
    RequestBlocks,
    held_rows,
    request_blocks,
)
from kvplan.engines.vllm.buckets import Bucket, Layers
from kvplan.engines.vllm.formats import check_formats
from kvplan.engines.vllm.groups import page_groups, promoted
from kvplan.engines.vllm.layers import Declared, declare
from kvplan.engines.vllm.options import settings_of
from kvplan.engines.vllm.pool import UTILS, Pool
from kvplan.engines.vllm.states import STATE_BACKENDS
from kvplan.engines.vllm.versions import PLANNING, rules_of
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part

NULL = "vLLM 0.33.0, vllm/v1/core/block_pool.py:189-192"
_UNREAD = "rows that attention no longer reads"
_IN_FLIGHT = "in-flight tokens and window overhang"
_RESERVES = {MAMBA: "further states of a request", CROSS: "encoder budget beyond the input"}
"""What is reserved by kind of layer; in-flight tokens for all others."""


class VllmCache(EngineCache):
    """Blocks of one size in bytes; every page group takes its own of them for each request."""

    def __init__(self, case: Case) -> None:
        check_formats(case)
        rules = rules_of(case.version)
        settings = settings_of(case, rules)
        declared = declare(case, settings)
        block_outer = _block_outer(case, declared)
        layers = list(declared.layers) if settings.hybrid else promoted(declared.layers)
        self.case, self.declared, self.settings = case, declared, settings
        self.page_size = declared.block_size
        self.notes = declared.notes
        self.pool = Pool(
            buckets=tuple(page_groups(layers, rules.near_equal, block_outer)),
            rules=rules,
            stages=len(case.stages),
            in_flight=settings.in_flight,
            retained=settings.retained,
            max_model_len=case.context,
            ranks=case.sharding.dcp,
            block_outer=block_outer,
            override=case.options["num_gpu_blocks_override"],
        )

    @property
    def layout(self) -> str:
        """Order of layers, blocks, tokens and heads in memory (v1/attention/backends/utils.py:229-236)."""
        asked: str | None = self.case.options["kv_cache_layout"]
        blackwell = self.case.capability is not None and self.case.capability[0] in (10, 11)
        heads_first = blackwell and self.declared.backends.get("attention") == "FLASHINFER"
        return asked or ("BLHNC" if self.pool.block_outer else "LBHNC" if heads_first else "LBNHC")

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends of all layers, those of states and index keys included."""
        states = [g.state.type for g in self.case.spec.layer_groups if g.kind == "state"]
        named = [STATE_BACKENDS[kind] for kind in states] + list(self.declared.backends.values())
        return tuple(sorted({*named, *(["DEEPSEEK_V32_INDEXER"] if "sparse" in self.declared.backends else [])}))

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per cache group, then the null block; see `EngineCache`."""
        made: dict[int, Part] = {}
        for bucket in self.pool.buckets:
            for place, member in enumerate(bucket.members):
                made[member.index] = self._part(bucket, member, context, sequences, slots=place == 0)
        parts = [made.get(i, Part(g.name, ())) for i, g in enumerate(self.case.groups)]
        return (*parts, *self._null_block())

    def _part(self, bucket: Bucket, member: Layers, context: int, sequences: int, slots: bool) -> Part:
        """Blocks of one cache group's layers; the bucket's first group also carries its empty layer slots."""
        group, spec = self.case.groups[member.index], member.spec
        blocks = self._blocks(bucket, spec, context)
        layers = Factor("layers", group.layers, group.origin.layers)
        page = Factor("bytes", spec.page_bytes, f"block of {spec.block_size:,} tokens; {group.origin.width}")
        empty = Factor("bytes of empty layer slots", self._empty_slots(bucket) if slots else 0, PLANNING)

        def both(label: str, count: int) -> tuple[Product, ...]:
            taken = _product(label, group, sequences, layers, Factor("blocks", count), page)
            return some(taken, _product(f"{label}, layer padding", group, sequences, Factor("blocks", count), empty))

        return Part(
            group.name,
            both("states" if spec.kind == MAMBA else "blocks", blocks.total),
            reserved=both(_RESERVES.get(spec.kind, _IN_FLIGHT), blocks.reserved),
            saves=self._saves(group, spec, blocks, context, sequences),
            padding=self._padding(group, spec, blocks, sequences, layers, empty),
        )

    def _blocks(self, bucket: Bucket, spec: LayerSpec, context: int) -> RequestBlocks:
        """Blocks of a request, brought to those of the page group, whose longest member decides."""
        found = request_blocks(spec, context, self.pool.in_flight, self.pool.retained)
        more = self.pool.bucket_blocks(bucket, context) - found.total
        return RequestBlocks(found.needed, found.unread + more, found.reserved)

    def _padding(
        self, group: CacheGroup, spec: LayerSpec, blocks: RequestBlocks, sequences: int, layers: Factor, empty: Factor
    ) -> tuple[Product, ...]:
        needed, unread = Factor("blocks", blocks.needed), Factor("blocks", blocks.unread)
        padded = Factor("bytes of page padding", spec.page_bytes - spec.unpadded, "brought to the largest page")
        page = Factor("bytes", spec.page_bytes)
        return some(
            _product("page padding", group, sequences, layers, needed, padded),
            _product("empty layer slots", group, sequences, Factor("blocks", blocks.needed + blocks.unread), empty),
            _product(_UNREAD, group, sequences, layers, unread, page),
        )

    def _saves(
        self, group: CacheGroup, spec: LayerSpec, blocks: RequestBlocks, context: int, sequences: int
    ) -> tuple[Product, ...]:
        """States in a narrower type than the spec's, rows that other ranks hold, and ring rows not yet taken."""
        layers = Factor("layers", group.layers, group.origin.layers)
        if spec.kind == MAMBA:
            spared = max(0, group.layout.fixed_bytes("state") - spec.unpadded)
            less = Factor("bytes", spared, "state in the engine's number types")
            return some(_product("states in a narrower type", group, sequences, layers, less))
        rows = group.law.rows(context) - held_rows(spec, context, blocks)
        row = Factor("bytes", spec.layout.page_bytes(1), group.origin.width)
        return some(_product("rows not held", group, sequences, layers, Factor("rows", rows), row))

    def _empty_slots(self, bucket: Bucket) -> int:
        """Bytes of all page groups' blocks that belong to no layer of this stage."""
        stage, block = self.case.stage, self.pool.block_bytes(self.case.stage)
        return sum(block - used for used in bucket.group_bytes(stage))

    def _null_block(self) -> tuple[Part, ...]:
        if not self.pool.rules.null_block or not self.pool.buckets:
            return ()
        block = Factor("bytes", self.pool.block_bytes(self.case.stage), "one block of all layers")
        taken = (Product("null block", (Factor("blocks", 1), block), "engine rule", NULL),)
        return (Part("null block", taken, reserved=taken),)

    def shared_bytes(self, tokens: int) -> int:
        """Whole blocks of a prefix in the page groups that keep every token; windows and states are each request's own.

        Blocks of states in mode align are shared too, but one request needs its own all the same.
        """
        block = self.pool.block_bytes(self.case.stage)
        full = [b for b in self.pool.buckets if b.kind in EVERY_TOKEN]
        return sum(b.groups * (tokens // (b.block_size * self.pool.ranks)) * block for b in full)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Block size, page groups and blocks; with the bytes of the pool also what fits and what vLLM prints."""
        pool, stage = self.pool, self.case.stage
        per_group = [n for b in pool.buckets for n in b.layers_per_group()]
        made = [
            EngineFigure("attention backend", ", ".join(self.backends), ORDER),
            EngineFigure("block_size", self.declared.block_size, SIZES),
            EngineFigure("layers per group", ", ".join(map(str, per_group)), PLANNING),
            EngineFigure("bytes per block", pool.block_bytes(stage), PLANNING),
            EngineFigure("blocks per request", pool.blocks_per_request(context), INTERFACE),
        ]
        if pool_bytes is None or not pool.buckets:
            return tuple(made)
        blocks = pool_bytes // pool.block_bytes(stage) if pool.override is None else pool.override
        made += [
            EngineFigure("num_gpu_blocks", blocks, PLANNING),
            EngineFigure("max concurrency", pool.max_concurrency(blocks), UTILS),
            EngineFigure("kv_cache_size_tokens", pool.printed_tokens(blocks), UTILS),
            *(EngineFigure("log line", line, UTILS) for line in pool.log_lines(blocks)),
        ]
        found = pool.fit([pool_bytes if s == stage else pool.block_bytes(s) * (blocks + 1) for s in range(pool.stages)])
        if not found.fits:
            made.append(EngineFigure("estimated maximum model length", found.longest, PLANNING))
        return tuple(made)


def _product(label: str, group: CacheGroup, sequences: int, *factors: Factor) -> Product:
    """Bytes by vLLM's rule for all sequences."""
    named = (Factor("sequences", sequences, group.origin.sequences), *factors)
    return Product(label, named, "engine rule", INTERFACE)


def _block_outer(case: Case, declared: Declared) -> bool:
    """Whether the layout keeps all layers of a block together."""
    layout = case.options["kv_cache_layout"]
    if layout is None:
        return "v4" in declared.backends
    return bool(layout.startswith("B"))


def cache(case: Case) -> VllmCache:
    """Lay out a case.

    Raises:
        UsageError: what vLLM refuses. UnsupportedError: what kvplan has no rule for.
    """
    return VllmCache(case)
