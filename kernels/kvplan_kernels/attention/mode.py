"""What of a decode launch changes its code: query rows, window, softcap. A `Mode` is passed to kernels as a constexpr.

The R query rows of a request and the G query heads of a KV head are R * G columns of the matrix unit, row by row, cut
into blocks of `columns`; to the work list a block is a KV head of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

# Columns of a block where there are few and where there are many: the first fit one or two warps, 32 would spill there
# and cost four warps as much as 64 do.
FEW_COLUMNS, MANY_COLUMNS = 16, 64
# Channels from which many columns need more shared memory than an SM has.
WIDEST_OF_MANY = 256


@dataclass(frozen=True)
class Mode:
    """Constants of one launch.

    Attributes:
        rows: query rows R of a request.
        group: query heads G of a KV head.
        columns: of a block.
        own: the rows' own keys and values are not in the cache: a partial result over them is merged.
        windowed, softcap, sinks: see `Variant`.
        fp8: queries and probabilities are rounded to e4m3, as backends do that multiply in 8 bit.
    """

    rows: int = 1
    group: int = 1
    columns: int = 1
    own: bool = False
    windowed: bool = False
    softcap: bool = False
    sinks: bool = False
    fp8: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of columns per KV head."""
        return -(-self.rows * self.group // self.columns)

    @property
    def causal(self) -> bool:
        """Whether rows see different ends of the cache."""
        return self.rows > 1 and not self.own

    @property
    def edges(self) -> bool:
        """Whether a head may have several tiles that not all rows see whole."""
        return self.causal or self.windowed

    @property
    def shifted(self) -> bool:
        """Whether a shift common to all scores of a query matters: else softmax ignores it."""
        return self.softcap or self.sinks or self.own


def block_columns(rows: int, group: int, dim: int) -> int:
    """Columns of a block for rows of at most `dim` channels: whole query rows where they fit, all blocks but the last
    full."""
    total = rows * group
    few = total <= 2 * FEW_COLUMNS or dim > WIDEST_OF_MANY
    wanted = min(total, FEW_COLUMNS if few else MANY_COLUMNS)
    return wanted - wanted % group if rows > 1 and group <= wanted else wanted


def window_reach(rows: int, window: int | None, own: bool) -> int | None:
    """Newest rows of the cache that the window of any query reaches; None without a window."""
    return None if window is None else window - 1 + (0 if own else rows)
