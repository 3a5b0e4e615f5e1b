"""In which of llama.cpp's caches a cache group lies: its cells, and the tensors of one layer.

Source: llama.cpp b11434, src/llama-model.cpp:2358-2895, src/llama-kv-cache.cpp:148-240, src/llama-kv-cache-msa.cpp,
src/llama-kv-cache-dsa.cpp, src/llama-kv-cache-dsv4.cpp:1213-1339, src/llama-memory-hybrid-idx.cpp:48-75.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.engines.llamacpp.builds import CELLS, build_of
from kvplan.engines.llamacpp.families import EXPANDED, NO_FLASH_ATTENTION, POOLED_INDEX, UNWINDOWED, family
from kvplan.engines.llamacpp.formats import spelling_of
from kvplan.engines.llamacpp.server import Server
from kvplan.engines.llamacpp.tensors import cuda_bytes, float_states, row_layout, tensor_bytes
from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan.memory.groups import CacheGroup

FULL, WINDOW, COMPRESSED, STATE, NOWHERE = "full", "window", "compressed", "state", "nowhere"
MTP = "mtp-"
"""Start of the names of prediction layers' groups."""
DRAFT_TYPES = {"f16", "bf16"}
ATTENTION, SWA, INDEXER, CSA, HCA, CSA_INDEX, RECURRENT = (
    "attention", "swa", "indexer", "csa", "hca", "csa-index", "recurrent",
)  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """One tensor of one layer: K or V, as the mathematics needs it and as llama.cpp has it.

    Attributes:
        needed: bytes of a row that the mathematics has; 0 for a plane that nothing reads.
        taken: bytes of a row in the cache.
        cuda: bytes that a CUDA device adds to the tensor.
        beyond: why `taken` is more than `needed`.
    """

    name: str
    needed: int
    taken: int
    cuda: int
    beyond: str = ""


@dataclass(frozen=True)
class Store:
    """Where the rows of a group lie.

    Attributes:
        memory: name of the cache.
        cells: law of its cells: full, window, compressed, state, or nowhere.
        split: whether every slot has a stream even in unified mode.
    """

    group: CacheGroup
    memory: str
    cells: str
    tensors: tuple[Stored, ...] = ()
    split: bool = False
    states: Layout | None = None

    def shape(self, server: Server) -> tuple[int, int]:
        """(streams, cells of one stream)."""
        here = server.split() if self.split else server
        law = self.group.law
        if self.cells == WINDOW:
            return here.streams, here.window_cells(law.limit)
        if self.cells == COMPRESSED:
            return here.streams, here.compressed_cells(law.stride)
        return here.streams, here.n_ctx_seq

    @property
    def row_bytes(self) -> int:
        """Bytes of a cell of one layer."""
        return sum(t.taken for t in self.tensors)

    @property
    def needed_bytes(self) -> int:
        """Bytes of a row of one layer that the mathematics has."""
        return sum(t.needed for t in self.tensors)


def stores(case: Case) -> tuple[Store, ...]:
    """The store of every group of the case's stage, in their order.

    Raises:
        UnsupportedError: a kind of cache that llama.cpp does not have or kvplan has not read.
    """
    windows = {g.law.limit for g in case.groups if _by_window(case, g)[1] == WINDOW}
    if len(windows) > 1:
        sizes = " and ".join(f"{n:,}" for n in sorted(windows))
        raise UnsupportedError(
            f"llama.cpp knows one window for a model; {case.spec.id} has {sizes}", "plan without --engine"
        )
    compressed = any(g.role == "latent" and g.law.stride > 1 for g in case.groups)
    return tuple(_store(case, g, compressed) for g in case.groups)


def _store(case: Case, group: CacheGroup, compressed: bool) -> Store:
    """The store of one group.

    Args:
        compressed: whether the model keeps compressed rows (DeepSeek-V4): then every slot has its own stream.
    """
    if group.name.startswith(MTP):
        return _draft(case, group, compressed)
    if group.role == "state":
        return _state(case, group, compressed)
    cuda = _cuda(case)
    if group.role == "index":
        return _index(case, group, compressed, cuda)
    if group.role == "kv" and group.law.stride == 1 and group.law.law != "ring":
        memory, cells = _by_window(case, group)
        return Store(group, memory, cells, (_plain(group, "k", cuda), _v(case, group, cuda)))
    if group.role == "latent" and family(case.spec) not in EXPANDED:
        memory, cells = _by_window(case, group)
        if group.law.stride > 1:
            memory, cells = (HCA if group.law.stride in _rings(case) else CSA), COMPRESSED
        return Store(
            group, memory, cells, (_plain(group, "latent", cuda), *_latent_copy(case, group, cuda)), compressed
        )
    raise UnsupportedError(
        f"kvplan has no rule for group {group.name} ({group.role}) of {case.spec.id} in llama.cpp",
        "plan without --engine",
    )


def _draft(case: Case, group: CacheGroup, compressed: bool) -> Store:
    """Prediction layers: caches of a context of their own, as many cells, in types of its own (f16)."""
    stored = {case.chosen[t.role] for t in group.layout.tensors}
    if compressed or group.role == "state" or not stored <= DRAFT_TYPES:
        raise UnsupportedError(
            f"kvplan has no rule for prediction layers like {group.name} of {case.spec.id} in llama.cpp "
            f"({', '.join(sorted(stored))})",
            "drop --mtp" if compressed else "plan them in f16 (-ctkd, -ctvd are options of their own), or drop --mtp",
        )
    if group.role == "index" and family(case.spec) not in POOLED_INDEX:
        # The draft head attends to everything: it has no indexer.
        return Store(group, INDEXER, NOWHERE)
    plain = replace(group, name=group.name.removeprefix(MTP))
    made = _store(case, plain, compressed)
    return replace(made, group=group, memory=f"draft {made.memory}")


def _by_window(case: Case, group: CacheGroup) -> tuple[str, str]:
    """The cache and its law: layers with a window have one of their own where llama.cpp knows the window."""
    if group.law.law in ("window", "chunk") and family(case.spec) not in UNWINDOWED:
        return SWA, WINDOW
    return ATTENTION, FULL


def _plain(group: CacheGroup, role: str, cuda: bool) -> Stored:
    nbytes = tensor_bytes(group.layout, role, 1)
    return Stored("V" if role == "v" else "K", nbytes, nbytes, cuda_bytes(group.layout, role) if cuda else 0)


def _v(case: Case, group: CacheGroup, cuda: bool) -> Stored:
    """V of a group; transposed without flash attention, and then as wide as the model's widest."""
    plain = _plain(group, "v", cuda)
    if not without_flash_attention(case):
        return plain
    widest = max(g.kv_heads * g.v_dim for g in case.spec.layer_groups if g.kind == "attention")
    taken = row_layout("v", group.layout.tensor("v").spelling, widest).page_bytes(1)
    return Stored("V", plain.needed, taken, 0, "V as wide as the widest layer's, without flash attention")


def _latent_copy(case: Case, group: CacheGroup, cuda: bool) -> tuple[Stored, ...]:
    """V of a latent in builds that stored it twice: the part without position."""
    if not build_of(case).latent_copy:
        return ()
    spec = case.spec.group(group.name)
    assert spec.kind == "latent"
    plane = row_layout("v", spelling_of(case.chosen["v"]), spec.nope_dim)
    return (Stored("V", 0, plane.page_bytes(1), cuda_bytes(plane, "v") if cuda else 0, "latents stored again as V"),)


def _index(case: Case, group: CacheGroup, compressed: bool, cuda: bool) -> Store:
    """Index keys: a cache of its own in K's type, with the V plane of an ordinary cache unless the model has none."""
    keys = _plain(group, "index", cuda)
    if compressed:
        return Store(group, CSA_INDEX, COMPRESSED, (keys,), split=True)
    pooled = POOLED_INDEX.get(family(case.spec), 0)
    if pooled:
        tensor = group.layout.tensor("index")
        wide = row_layout("index", tensor.spelling, pooled * tensor.dim)
        more = cuda_bytes(wide, "index") if cuda else 0
        taken = wide.page_bytes(1)
        return Store(group, INDEXER, FULL, (Stored("K", keys.needed, taken, more, "gates and pooled keys"),))
    if group.law.stride > 1:
        raise UnsupportedError(
            f"kvplan has no rule for the pooled index keys of group {group.name} in llama.cpp", "plan without --engine"
        )
    widths = {g.v_dim for g in case.spec.layer_groups if g.kind == "attention"}
    if not widths:
        return Store(group, INDEXER, FULL, (keys,))
    plane = row_layout("v", spelling_of(case.chosen["v"]), max(widths))
    unread = Stored("V", 0, plane.page_bytes(1), cuda_bytes(plane, "v") if cuda else 0, "V plane of the index cache")
    return Store(group, INDEXER, FULL, (keys, unread))


def _state(case: Case, group: CacheGroup, compressed: bool) -> Store:
    """States in fp32; the open groups of DeepSeek-V4 have caches of their own, other rings none."""
    if group.law.law != "ring" or group.law.limit == 1:
        return Store(group, RECURRENT, STATE, states=float_states(group.layout))
    if not compressed:
        if family(case.spec) in POOLED_INDEX:
            return Store(group, INDEXER, NOWHERE)
        raise UnsupportedError(f"kvplan has no rule for the ring {group.name} in llama.cpp", "plan without --engine")
    spec = case.spec.group(group.name)
    name = HCA if group.law.limit in _strides(case) else CSA
    if spec.kind == "latent" and spec.role == "index":
        name = CSA_INDEX
    return Store(group, f"{name} state", STATE, states=float_states(group.layout))


def _rings(case: Case) -> set[int]:
    return {g.law.limit for g in case.groups if g.law.law == "ring"}


def _strides(case: Case) -> set[int]:
    return {g.law.stride for g in case.groups}


def _cuda(case: Case) -> bool:
    """Whether the cache lies on a CUDA device: as said, else whether a CUDA GPU is named."""
    asked = case.options["cuda"]
    return bool(case.capability is not None if asked is None else asked)


def without_flash_attention(case: Case) -> bool:
    """Whether flash attention is off: as said, by the build's default, or because the architecture has none."""
    asked = case.options["flash_attn"]
    off = asked == "off" or (asked == "auto" and not build_of(case).auto_flash)
    return off or family(case.spec) in NO_FLASH_ATTENTION


def cells_unit(case: Case) -> int:
    """Cells come in multiples of this."""
    return build_of(case).plain_cells if without_flash_attention(case) else CELLS
