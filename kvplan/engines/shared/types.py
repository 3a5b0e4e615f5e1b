"""How an engine is declared: versions, formats, options, rules, and the function that lays out its cache.

An engine is one module (or folder) of `kvplan.engines` with an `ENGINE`. It reads cache groups, which say what the
mathematics needs, and answers in parts, which say what its allocator takes. Bytes come from the groups' layouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvplan.engines.shared.launch import LaunchSpec
from kvplan.engines.shared.memory import DEFAULT_POOL, PoolRule
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import row_bytes
from kvplan.memory.groups import CacheFormats, CacheGroup
from kvplan.memory.parts import EngineFigure as EngineFigure
from kvplan.memory.parts import Part, total
from kvplan.memory.sharding import Sharding

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

NATIVE = "native"
"""In an EngineFormat: the model's own dtype."""


@dataclass(frozen=True, kw_only=True)
class EngineFormat:
    """One value of an engine's cache-dtype option, and the rows that it stores.

    Attributes:
        option: the value as the engine's user writes it.
        k, v, latent, index: spelling of each tensor, `native`, or empty where the option does not apply to that tensor.
        source: project, version and file that say so.
        nbytes: bytes of K + V of one (token, head) at head_dim 128 over `tokens` tokens; asserted.
        needs: in words, what it asks of GPU, backend or model.
        since, until: first and last version that has it; empty: all covered ones.
        capabilities: inclusive ranges of CUDA compute capability that have it; empty: any.
        aliases: other values with the same rows.
        launchable: whether the engine's command can choose it; False where another tool builds it.
        compute: in which type attention multiplies with it, in words.
        skips: rules for single layers that the engine adds by itself, as `--layers` takes them.
    """

    option: str
    k: str = ""
    v: str = ""
    latent: str = ""
    index: str = ""
    source: str
    nbytes: int | None = None
    tokens: int = 1
    needs: str = ""
    since: str = ""
    until: str = ""
    capabilities: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    aliases: tuple[str, ...] = ()
    compute: str = ""
    launchable: bool = True
    skips: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes is not None:
            k, v = ("bf16" if f == NATIVE else f for f in (self.k, self.v))
            assert row_bytes(k, v, tokens=self.tokens) == self.nbytes, self
        for spelling in (self.latent, self.index):
            assert not spelling or spelling == NATIVE or parse_any(spelling), self

    @property
    def names(self) -> tuple[str, ...]:
        """The option and its aliases."""
        return (self.option, *self.aliases)


@dataclass(frozen=True, kw_only=True)
class EngineOption:
    """A setting of the engine that changes bytes, given as `--engine-option NAME=VALUE`.

    Attributes:
        name: as the engine spells it, with underscores.
        kind: int, float, bool or str.
        default: what the engine takes; None: worked out from model, device and other options.
        choices: of a str.
    """

    name: str
    kind: type = int
    default: int | float | bool | str | None = None
    text: str
    source: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineRule:
    """One rule by which bytes are allocated, in a sentence, with its source."""

    name: str
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """A version whose rules are known, and what differs from the next newer one."""

    name: str
    note: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an engine is asked: the cache of one rank of one pipeline stage.

    Attributes:
        stages: the cache groups of one rank of every stage, what the mathematics needs; `stage` is the index of ours.
        version: one of the engine's covered versions.
        options: every option of the engine, defaults filled in; None: to be worked out.
        formats: the cache configuration, formats of single layers included.
        chosen: the engine's own option for each tensor role of the model (k, v, latent, index).
        context: tokens of a sequence that the engine is started for (max_model_len).
        sequences: requests at once on this replica (batch size, slots), for engines that lay out slots ahead.
        capability: CUDA compute capability of the GPU; None: not known.
        memory_bytes: of the GPU; None: not known.
    """

    spec: ModelSpec
    stages: tuple[tuple[CacheGroup, ...], ...]
    stage: int = 0
    sharding: Sharding = field(default_factory=Sharding)
    formats: CacheFormats
    chosen: Mapping[str, str]
    version: str
    options: Mapping[str, Any]
    context: int
    sequences: int = 1
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    mtp: bool = False

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of this rank."""
        return self.stages[self.stage]


class EngineCache(ABC):
    """A cache as the engine lays it out for one case.

    Attributes:
        page_size: tokens per page of growing caches; None where the engine has no pages.
        notes: what the user should know, in sentences: defaults that decide, calls assumed, what is not saved.
    """

    page_size: int | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per cache group, in their order, then parts that belong to no group.

        `sequences` may be 0: what the engine takes before any request. Grows with both arguments.
        """

    def held(self, context: int, sequences: int) -> int:
        """Allocated bytes of `sequences` requests of `context` tokens."""
        return sum(total(part.allocated) for part in self.parts(context, sequences))

    def beside(self, tokens: int) -> int | None:
        """Bytes of one more, shorter request; None where all slots have one size."""
        return self.held(tokens, 1) - self.held(tokens, 0)

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of the rows of a prefix that requests can share, counted once; 0 where the engine shares none."""
        return 0

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """What the engine itself would report: page sizes and blocks; with the bytes of its pool also what fits."""
        return ()


Tailor = Callable[["ModelSpec", str, Mapping[str, Any], tuple[int, int] | None], tuple[EngineFormat, ...]]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine.

    Attributes:
        name: as on the command line.
        title: as its project writes it.
        flag: the engine's own option for the cache dtype; two where K and V have one each (`K flag`, `V flag`).
        versions: covered, newest first.
        formats: values of the flag; the first is the default.
        cache: lays out a case.
            Raises UsageError where the engine refuses the combination, UnsupportedError where kvplan has no rule yet.
        apart: whether K and V are chosen each from `formats`.
        page_option: the option that `--page-size` sets; None: the engine has no page size to set.
        pool: how the engine sizes its pool on a GPU.
        launch: how it is started; None: kvplan writes no command for it.
        tailor: the formats as this model, version, options and CUDA compute capability (None: not known) have them, the
            default first, where one option stands for different rows; None: `formats` as they are.
        respell: from (spelling by role, the engine's option by role, engine options) to spellings, where other options
            than the cache dtype change what a row looks like, such as a group size.
    """

    name: str
    title: str
    flag: tuple[str, ...]
    versions: tuple[EngineVersion, ...]
    formats: tuple[EngineFormat, ...]
    options: tuple[EngineOption, ...]
    rules: tuple[EngineRule, ...]
    cache: Callable[[Case], EngineCache]
    apart: bool = False
    page_option: str | None = None
    pool: PoolRule = DEFAULT_POOL
    launch: LaunchSpec | None = None
    tailor: Tailor | None = None
    respell: Callable[[Mapping[str, str], Mapping[str, str], Mapping[str, Any]], dict[str, str]] | None = None
