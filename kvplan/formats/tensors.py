"""One tensor of a layout: as it was asked for (`BoundTensor`) and as a kernel needs it (`TensorView`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True)
class BoundTensor:
    """One tensor (k, v, latent, index) of a layout: its numbers and its split law.

    Attributes:
        dim: channels of one head (latent: nope + rope).
        number: the stored number, e.g. `int8`, `fp8_e4m3`, `bf16`.
        group: N of channel/N and group/N, else 0.
        recent: capacity of the unquantised residual in tokens, 0 without one.
        flush: `whole` (all `recent` tokens at once) or `oldest` (one at a time).
        pack: `slot` or `page` where codes and scales share a plane of bytes, else empty.
        row: groups run along the rank's whole row instead of one head.
        flat: they even run on into the next tokens.
        rope: storage of the rope part of a latent kept apart, else empty.
        global_scale: storage of one more scale per layer, else empty.
    """

    role: str
    spelling: str
    dim: int
    number: str
    granularity: str = ""
    group: int = 0
    asym: bool = False
    scale: str = ""
    recent: int = 0
    flush: str = ""
    pack: str = ""
    row: bool = False
    rot: bool = False
    rope: str = ""
    global_scale: str = ""
    flat: bool = False

    def split(self, tokens: int) -> tuple[int, int]:
        """(packed, recent) tokens after `tokens` rows: which are quantised and which still wait in the residual."""
        if not self.recent:
            return tokens, 0
        waiting = tokens % self.recent if self.flush == "whole" else min(tokens, self.recent)
        return tokens - waiting, waiting

    def holds(self, packed: int) -> int:
        """Most tokens of which no more than `packed` are packed: the inverse of `split`."""
        if self.flush == "whole":
            return packed - packed % self.recent + self.recent - 1
        return packed + self.recent

    def most_packed(self, new: int) -> int:
        """Most tokens that appending `new` ones can pack at once, whatever waited before."""
        return (self.recent - 1 + new) // self.recent * self.recent if self.flush == "whole" else new

    def waits_at_most_like(self, other: BoundTensor) -> bool:
        """Whether at every length no more tokens of this tensor wait unquantised than of the other."""
        if not self.recent or not other.recent:
            return not self.recent
        if other.flush == "oldest":
            return self.recent <= other.recent
        return self.flush == "whole" and other.recent % self.recent == 0

    @property
    def beyond_kernels(self) -> str:
        """What of this tensor a `TensorView` cannot say yet, so that no kernel can read it; empty if nothing."""
        features = {
            f"pack={self.pack}": bool(self.pack),
            "row": self.row and not self.flat,
            "flat": self.flat,
            "rot": self.rot,
            f"rope={self.rope}": bool(self.rope),
            f"global={self.global_scale}": bool(self.global_scale),
            f"scale={self.scale}": self.scale not in ("", "fp16", "bf16", "fp32"),
        }
        return ", ".join(name for name, present in features.items() if present)


@dataclass(frozen=True)
class TensorView:
    """What a kernel needs of one tensor, as a compile key: every number that changes code is a field.

    Row metadata (scale, zero) is read at `slot * meta_stride + offset`, both in items of the plane's storage; a slot
    is one token, with channel/N it is N tokens and holds one scale per channel.
    Static scales have `static_items` items per head (`static_heads` 1 when one scale serves all heads).
    The newest tokens wait unquantised in a ring of `recent` rows of `recent_storage`, see `BoundTensor.split`.
    """

    number: str
    bits: int
    dim: int
    granularity: str
    group: int
    asym: bool
    meta_storage: str
    meta_stride: int
    scale_at: int
    zero_at: int
    static_items: int
    static_per_head: bool
    recent: int
    flush: str
    recent_storage: str

    @property
    def quantised(self) -> bool:
        return self.bits < 16

    @property
    def is_int(self) -> bool:
        return self.number.startswith("int")

    @property
    def words(self) -> int:
        """16-bit words of one row of one head."""
        return self.dim * self.bits // 16

    @property
    def fields_per_word(self) -> int:
        return 16 // self.bits

    @property
    def whole_words(self) -> bool:
        """Whether a row ends on a 16-bit word, the unit in which kernels read codes."""
        return self.dim * self.bits % 16 == 0

    @property
    def planar(self) -> bool:
        """Field j of word w is channel `j * words + w` in codes narrower than a byte, else channel `w * fields + j`."""
        return self.bits < 8

    @property
    def groups(self) -> int:
        """Scales of one row of one head."""
        return self.dim // self.group if self.granularity == "group" else 1

    @property
    def stripe_words(self) -> int:
        """Words of a stripe: rows are cut so that field j of all words of a stripe belongs to one group."""
        if self.granularity != "group":
            return self.words
        return gcd(self.words, self.group) if self.planar else self.group * self.bits // 16

    @property
    def middle_field(self) -> int:
        """log2 of the middle weight of a byte's fields, field i weighing `2**(bits * i)`."""
        return self.bits * (self.fields_per_word // 2 - 1) // 2 if self.planar else 0

    # The group of field j of stripe i is (j * field_step + i * stripe_step) // group_width, for any format.
    @property
    def field_step(self) -> int:
        return self.words if self.planar else 0

    @property
    def stripe_step(self) -> int:
        return self.stripe_words * (1 if self.planar else self.fields_per_word)

    @property
    def meta_dot(self) -> bool:
        """Whether the zeros of several groups are added by a small matrix product with the rows' metadata."""
        return self.groups > 1 and self.meta_storage == "fp16" and self.is_int

    @property
    def shift_at(self) -> int:
        """First metadata item that moves the codes: the zeros, or the scales of codes in excess notation."""
        return self.zero_at if self.asym else self.scale_at

    @property
    def group_width(self) -> int:
        return self.group if self.granularity == "group" else self.dim

    @property
    def stripes(self) -> int:
        return self.words // self.stripe_words

    @property
    def nested(self) -> bool:
        """Whether all fields in the upper byte of a word have one scale: kernels then unpack them as nested sums."""
        if self.by_channel:
            return False
        if not self.planar or self.granularity != "group":
            return self.planar
        return self.stripes == 1 and self.dim // 2 // self.group == (self.dim - 1) // self.group

    @property
    def by_channel(self) -> bool:
        """channel/N: one scale per channel over N tokens, stored with the rows."""
        return self.granularity == "channel" and self.group > 0

    @property
    def scale_items(self) -> int:
        """Scales in one slot of metadata."""
        return self.dim if self.by_channel else self.groups

    @property
    def has_row_scale(self) -> bool:
        """Whether every row has scales of its own."""
        return self.meta_stride > 0 and not self.by_channel

    @property
    def has_static_scale(self) -> bool:
        return self.static_items > 0
