"""The least pools with which SGLang serves a request, as parts."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.sglang.budget import sizes_for
from kvplan.engines.sglang.formats import check_capability
from kvplan.engines.sglang.pools import CELL, STATE, TWO, Held, Pools, arrange, tensor_bytes
from kvplan.engines.sglang.report import budget_figures, plain_figures
from kvplan.engines.sglang.settings import settle
from kvplan.engines.shared.paged import some
from kvplan.engines.shared.types import Case, EngineCache, EngineFigure
from kvplan.errors import UsageError
from kvplan.memory.parts import Part
from kvplan.units import cdiv

_EXTRA = "SGLang 0.5.23, srt/mem_cache/memory_pool.py:2260, 2464, 4866: every buffer has size + page_size rows"


class SglangCache(EngineCache):
    """Pools of tokens and of state slots, shared by all requests of a rank."""

    page_size: int

    def __init__(self, case: Case) -> None:
        self.case = case
        check_capability(set(case.chosen.values()), case.capability)
        self.settings = settle(case)
        self.pools: Pools = arrange(case, self.settings)
        self.page_size = self.settings.page_size
        self.notes = self.settings.notes
        _refuse_too_many(case, self)

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per group, then the workspace and second scales of 4-bit rows; see `EngineCache`."""
        makers = {"full": self._rows, "index": self._rows, "swa": self._windows, "state": self._states}
        made = [makers[h.pool](h, context, sequences) for h in self.pools.held]
        return (*made, *self._four_bit(context, sequences))

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Cell and slot sizes; with the bytes left after the weights also tokens, slots, requests and log lines."""
        made = plain_figures(self.pools)
        if pool_bytes is None:
            return made
        options = self.case.options
        ratio, most = options["mamba_full_memory_ratio"], options["max_total_tokens"]
        sizes = sizes_for(self.pools, pool_bytes, ratio, most, context)
        return made + budget_figures(self.pools, sizes, self.case, context)

    def full_pages(self, context: int, sequences: int) -> int:
        """Pages of the full pool: those of the requests, or more where the window pool beside it needs them."""
        wanted = sequences * self.pools.pages(context, self.case.sharding.dcp)
        if not self.pools.of("swa") or not self.pools.of("full"):
            return wanted
        swa = max(sequences * self.pools.live_rows(context), self.pools.swa_floor())
        return max(wanted, self.pools.full_for(swa) // self.page_size)

    def swa_pages(self, context: int, sequences: int) -> int:
        """Pages of the window pool."""
        least = max(sequences * self.pools.live_rows(context), self.pools.swa_floor())
        if not self.pools.of("full"):
            return cdiv(least, self.page_size)
        beside = self.pools.swa_tokens(self.full_pages(context, sequences) * self.page_size)
        return max(beside, least) // self.page_size

    def _rows(self, held: Held, context: int, sequences: int) -> Part:
        """Pages of every request, and the page that no request owns."""
        per_request = self.pools.pages(context, self.case.sharding.dcp)
        taken, used = self.full_pages(context, sequences), sequences * per_request
        # Index keys lie in whole pages: (size + page + 1) // page of them.
        spare = (self.page_size + 1) // self.page_size if held.pool == "index" else 1
        why = f"{sequences:,} requests x ceil({context:,} / {self.page_size:,} tokens)"
        law = held.group.law
        beyond = context - law.rows(context) if law.limit else 0
        return Part(
            held.group.name,
            some(
                self._pages("pages", held, held.layers, taken, CELL, why),
                self._pages("extra page", held, held.layers, spare, _EXTRA),
            ),
            reserved=some(
                self._pages("pages beside a larger window pool", held, held.layers, taken - used, TWO),
                self._pages("extra page", held, held.layers, spare, _EXTRA),
            ),
            padding=some(
                self._pages("layers without rows of their own", held, held.idle, used, CELL),
                self._tokens("rows that attention no longer reads", held, sequences, beyond),
            ),
        )

    def _windows(self, held: Held, context: int, sequences: int) -> Part:
        """The window pool: the rows that requests hold, the rest of it reserved."""
        taken = self.swa_pages(context, sequences)
        live = self.pools.live_rows(context)
        used = sequences * live // self.page_size
        late = min(live, context) - held.group.law.rows(context)
        return Part(
            held.group.name,
            some(
                self._pages("window pool", held, held.layers, taken, TWO),
                self._pages("extra page", held, held.layers, 1, _EXTRA),
            ),
            reserved=some(
                self._pages("window pool beyond the requests", held, held.layers, taken - used, TWO),
                self._pages("extra page", held, held.layers, 1, _EXTRA),
            ),
            padding=some(
                self._pages("layers without rows of their own", held, held.idle, used, TWO),
                self._tokens("rows kept until the next eviction", held, sequences, late),
            ),
        )

    def _states(self, held: Held, context: int, sequences: int) -> Part:
        """Slots of every request, its spare ones and the padding slot, in SGLang's number types."""
        slots = max(sequences * self.settings.slots_per_request, self.settings.least_slots or 0)
        bytes_of = {p.name: p.fixed_bytes(1) for p in held.layout.scoped("state")}
        needed = {p.name: p.fixed_bytes(1) for p in held.group.layout.scoped("state")}
        narrower = sum(max(needed[name] - own, 0) for name, own in bytes_of.items())
        wider = sum(max(own - needed[name], 0) for name, own in bytes_of.items())
        per_slot = held.layout.fixed_bytes("state")
        why = f"{sequences:,} requests x {self.settings.slots_per_request} slots + 1"
        return Part(
            held.group.name,
            some(_slots("state slots", held, slots + 1, per_slot, why)),
            reserved=some(_slots("spare state slots", held, slots + 1 - sequences, per_slot)),
            saves=some(_slots("narrower numbers of states", held, sequences, narrower)),
            padding=some(_slots("wider numbers of states", held, sequences, wider)),
        )

    def _four_bit(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One layer of dequantised rows, and scales in a second layout."""
        taken = self.full_pages(context, sequences)
        made = []
        if self.pools.workspace:
            page = self.pools.workspace.page_bytes(self.page_size)
            made.append(_spread("dequantised rows of one layer", 1, taken, page))
        for held in self.pools.twice():
            one = tensor_bytes(held.layout, "k", "metadata") + tensor_bytes(held.layout, "v", "metadata")
            made.append(_spread(f"scales of {held.group.name} in a second layout", held.layers, taken,
                                one * self.page_size))  # fmt: skip
        return tuple(made)

    def _pages(self, label: str, held: Held, layers: int, pages: int, source: str, why: str = "") -> Product:
        tokens = self.page_size * held.spread
        return Product(
            label,
            (
                Factor("layers", layers, held.group.origin.layers),
                Factor(f"pages of {tokens:,} tokens", pages, why),
                Factor(
                    "bytes", held.layout.page_bytes(tokens), f"{held.group.origin.width}, {held.group.origin.heads}"
                ),
            ),
            "engine rule",
            source,
        )

    def _tokens(self, label: str, held: Held, sequences: int, rows: int) -> Product:
        return Product(
            label,
            (
                Factor("layers", held.group.layers, held.group.origin.layers),
                Factor("sequences", sequences, held.group.origin.sequences),
                Factor("rows", rows),
                Factor("bytes", held.layout.page_bytes(1), f"{held.group.origin.width}, {held.group.origin.heads}"),
            ),
            "engine rule",
            CELL,
        )


def _slots(label: str, held: Held, slots: int, nbytes: int, why: str = "") -> Product:
    factors = (
        Factor("layers", held.layers, held.group.origin.layers),
        Factor("slots", slots, why),
        Factor("bytes", nbytes, held.group.origin.width),
    )
    return Product(label, factors, "engine rule", STATE)


def _spread(name: str, layers: int, pages: int, nbytes: int) -> Part:
    """A part of no group: pages of the requests are padding, the extra page is reserved."""

    def product(label: str, count: int, source: str) -> Product:
        factors = (Factor("layers", layers), Factor("pages", count), Factor("bytes", nbytes))
        return Product(label, factors, "engine rule", source)

    rows, extra = product(name, pages, CELL), product("extra page", 1, _EXTRA)
    return Part(name, some(rows, extra), reserved=some(extra), padding=some(rows))


def _refuse_too_many(case: Case, cache: SglangCache) -> None:
    """More requests than the options let run at once."""
    limit, dp = case.options["max_running_requests"], cache.settings.attention_dp
    if limit is not None and case.sequences > max(1, limit // dp):
        raise UsageError(
            f"max_running_requests {limit} lets {max(1, limit // dp)} run at once, {case.sequences:,} are asked",
            f"give max_running_requests={case.sequences * dp}",
        )
    least, per = cache.settings.least_slots, cache.settings.slots_per_request
    if cache.pools.of("state") and least is not None and case.sequences * per > least:
        raise UsageError(
            f"{least:,} state slots serve {least // per:,} requests of {per} slots, {case.sequences:,} are asked",
            f"give max_mamba_cache_size={case.sequences * per * dp}",
        )
