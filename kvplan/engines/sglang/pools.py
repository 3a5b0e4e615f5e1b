"""SGLang's pools: which layers lie in which, bytes of a token in them, and tokens for a budget.

Source: SGLang 0.5.23, srt/model_executor/pool_configurator.py and srt/mem_cache/kv_cache_configurator.py, read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.engines.sglang import models
from kvplan.engines.sglang.settings import Settings, window_rows
from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.units import align_up, cdiv

CELL = "SGLang 0.5.23, srt/model_executor/pool_configurator.py:366-640"
TWO = "SGLang 0.5.23, srt/model_executor/pool_configurator.py:656-905"
STATE = "SGLang 0.5.23, srt/mem_cache/kv_cache_configurator.py:3229-3410"


@dataclass(frozen=True)
class Held:
    """A cache group as SGLang holds it.

    Attributes:
        pool: full, index (beside the full pool), swa or state.
        idle: further layers of the pool, without rows of their own.
        layout: what one layer stores; for states SGLang's own number types.
        spread: how many times the page's tokens a page holds (index keys are not shared by decode context parallel).
    """

    group: CacheGroup
    pool: str
    layout: Layout
    idle: int = 0
    spread: int = 1

    @property
    def layers(self) -> int:
        """Layers with a place in the pool."""
        return self.group.layers + self.idle

    @property
    def row_bytes(self) -> int:
        """Bytes of one token, all layers."""
        return self.layers * self.spread * self.layout.page_bytes(1)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state slot, all layers."""
        return self.layers * self.layout.fixed_bytes("state")


def tensor_bytes(layout: Layout, tensor: str, *roles: str) -> int:
    """Bytes of one token of one layer that belong to a tensor; `roles` payload and metadata, or one of them."""
    wanted = roles or ("payload", "metadata", "padding")
    return sum(
        f.unit_bytes * plane.heads(layout.heads)
        for plane in layout.scoped("page")
        for f in plane.fields
        if f.tensor == tensor and f.role in wanted
    )


@dataclass(frozen=True, kw_only=True)
class Pools:
    """All pools of one rank.

    Attributes:
        workspace: layout of the one layer of dequantised rows; None: there is none.
        window: the longest window; 0 without a pool for windows.
    """

    held: tuple[Held, ...]
    settings: Settings
    workspace: Layout | None
    window: int

    def of(self, *kinds: str) -> tuple[Held, ...]:
        """What lies in these pools, layers of other stages left out."""
        return tuple(h for h in self.held if h.pool in kinds and h.layers)

    @property
    def full_cell(self) -> int:
        """Bytes of one token in the full pool: rows, index keys, second scales, workspace."""
        extra = sum(h.layers * tensor_bytes(h.layout, t, "metadata") for h in self.twice() for t in ("k", "v"))
        workspace = self.workspace.page_bytes(1) if self.workspace else 0
        return sum(h.row_bytes for h in self.of("full", "index")) + extra + workspace

    @property
    def swa_cell(self) -> int:
        """Bytes of one token in the window pool."""
        return sum(h.row_bytes for h in self.of("swa"))

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state slot."""
        return sum(h.slot_bytes for h in self.of("state"))

    @property
    def cell(self) -> int | float:
        """Bytes that one token of max_total_num_tokens takes; a fraction where there are two pools."""
        if not self.of("swa") or self.settings.swa_cap is not None:
            return self.full_cell
        if not self.of("full"):
            return self.swa_cell
        return self.full_cell + self.settings.swa_ratio * self.swa_cell

    def twice(self) -> tuple[Held, ...]:
        """Groups whose scales are kept in two layouts."""
        return self.of("full") if self.settings.two_scale_layouts else ()

    def swa_tokens(self, full: int) -> int:
        """Tokens of the window pool beside `full` tokens, as the engine rounds them."""
        if self.settings.swa_cap is not None:
            return self.settings.swa_cap
        page = self.settings.page_size
        return int(full * self.settings.swa_ratio) // page * page

    def swa_floor(self) -> int:
        """The least window pool with which SGLang starts: above window + page (validate_swa_pool_size)."""
        page = self.settings.page_size
        return align_up(self.window + page + 1, page) if self.settings.swa_cap is None else 0

    def full_for(self, swa: int) -> int:
        """The least full-pool tokens, whole pages, beside which the window pool has `swa` tokens."""
        if self.settings.swa_cap is not None:
            return 0
        page = self.settings.page_size
        tokens = align_up(max(int(swa / self.settings.swa_ratio) - page, 0), page)
        while self.swa_tokens(tokens) < swa:
            tokens += page
        return tokens

    def live_rows(self, context: int) -> int:
        """Rows of the window pool that one request of `context` tokens may hold, whole pages."""
        page = self.settings.page_size
        return min(align_up(context, page), align_up(window_rows(self.window, page), page))

    def pages(self, context: int, dcp: int) -> int:
        """Full-pool pages of one request: each holds a page of every decode-context-parallel rank."""
        return cdiv(context, self.settings.page_size * dcp)


def arrange(case: Case, settings: Settings) -> Pools:
    """Put every cache group into its pool.

    Raises:
        UnsupportedError: caches whose rules kvplan has not read.
    """
    _refuse_unread(case)
    full_idle, swa_idle = _idle(case, settings)
    held: list[Held] = []
    for group in case.groups:
        made = _held(case, settings, group)
        draft = group.name.startswith("mtp-")
        if made.pool == "full" and not draft and full_idle:
            made, full_idle = replace(made, idle=full_idle), 0
        if made.pool == "swa" and not draft and swa_idle:
            made, swa_idle = replace(made, idle=swa_idle), 0
        held.append(made)
    _refuse_mixed(held)
    windows = [h.group.law.limit for h in held if h.pool == "swa"]
    return Pools(
        held=tuple(held), settings=settings, workspace=_workspace(case, settings, held), window=max(windows, default=0)
    )


def _held(case: Case, settings: Settings, group: CacheGroup) -> Held:
    if group.role == "state":
        return Held(group, "state", _state_layout(case, settings, group))
    if group.role == "index":
        return Held(group, "index", group.layout, spread=case.sharding.dcp)
    windowed = group.law.law in ("window", "chunk")
    return Held(group, "swa" if windowed and settings.two_pools else "full", group.layout)


def _state_layout(case: Case, settings: Settings, group: CacheGroup) -> Layout:
    """The group's states in SGLang's number types: what the config says, else fp32 (mamba_utils.py:46-92)."""
    of_spec = case.spec.group(group.name)
    assert of_spec.kind == "state", group.name
    unsaid = of_spec.dtype.recurrent == "model"
    stored = {}
    for plane in group.layout.scoped("state"):
        field = plane.fields[0]
        recurrent = settings.recurrent or ("fp32" if unsaid else field.storage)
        number = recurrent if plane.name == "recurrent" else settings.conv
        stored[plane.name] = (field.items, number)
    return bind_state(stored)


def _idle(case: Case, settings: Settings) -> tuple[int, int]:
    """Layers without rows of their own in (the full pool, the window pool): without states, every layer has a place."""
    span = case.sharding.stage_layers(case.spec.layers, case.stage)
    if settings.two_pools:
        return models.reading_layers(case.spec, span)
    if models.has_states(case.spec):
        return 0, 0
    own = sum(g.layers for g in case.groups if g.role in ("kv", "latent") and not g.name.startswith("mtp-"))
    return max(len(span) - own, 0), 0


def _workspace(case: Case, settings: Settings, held: list[Held]) -> Layout | None:
    first = next((h for h in held if h.pool == "full" and h.group.role == "kv" and h.layers), None)
    if settings.workspace is None or first is None:
        return None
    number = parse_any(settings.workspace)
    tensors = [Tensor(role, number, first.layout.tensor(role).dim) for role in ("k", "v")]
    return bind(tensors, first.layout.heads, DTYPES[case.spec.native_dtype])


def _refuse_unread(case: Case) -> None:
    spec = case.spec
    hint = "plan without --engine"
    if models.normal(spec.model_type).startswith("deepseekv4"):
        raise UnsupportedError("kvplan has no rule for DeepSeek-V4's compressed pools in SGLang", hint)
    for group in case.groups:
        rings = group.role == "state" and not {p.name for p in group.layout.planes} <= {"recurrent", "conv"}
        windowed_latent = group.role in ("latent", "index") and group.law.law != "all"
        if group.role == "cross" or group.law.stride != 1 or rings or windowed_latent:
            raise UnsupportedError(f"kvplan has no rule for group {group.name} ({group.role}) in SGLang", hint)
    for layers in spec.layer_groups:
        if layers.kind == "state" and layers.state.type not in models.STATES:
            raise UnsupportedError(f"kvplan knows no {layers.state.type} state in SGLang", hint)
    if any(g.role == "index" for g in case.groups) and not models.is_latent(spec):
        raise UnsupportedError("kvplan has no rule for index keys beside K and V in SGLang", hint)
    if case.sharding.pcp > 1:
        raise UnsupportedError("kvplan has no rule for prefill context parallel in SGLang", "drop --pcp")
    if case.mtp and spec.mtp and (models.has_states(spec) or case.sharding.dcp > 1):
        what = "states" if models.has_states(spec) else "decode context parallel"
        raise UnsupportedError(f"kvplan has no rule for draft layers beside {what} in SGLang", "drop --mtp")


def _refuse_mixed(held: list[Held]) -> None:
    """SGLang has one shape per pool."""
    for pool in ("full", "swa"):
        shapes = {h.layout for h in held if h.pool == pool and h.layers}
        if len(shapes) > 1:
            raise UnsupportedError(
                f"layers of the {pool} pool differ in heads or head_dim, and SGLang has one shape for all",
                "plan without --engine",
            )
    four_bit = any(t.number == "fp4_e2m1" for h in held for t in h.layout.tensors)
    if four_bit and any(h.pool == "swa" for h in held):
        raise UnsupportedError(
            "kvplan has no rule for 4-bit rows in two pools", "use fp8_e4m3, or disable_hybrid_swa_memory=on"
        )
