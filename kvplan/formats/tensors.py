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
        rope_dim: of the channels, the last ones, are a latent's rope part, wherever they are stored.
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
    rope_dim: int = 0

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
        # In a page plane only codes and one block of scales are known; scales of a byte only beside float codes.
        two_blocks = self.pack == "page" and not self.asym and not (self.granularity == "channel" and self.group)
        byte_scale = self.scale in ("fp8_e4m3", "e8m0") and self.number.startswith("fp")
        features = {
            f"pack={self.pack}": bool(self.pack) and not two_blocks,
            "row": self.row and not self.flat,
            "flat": self.flat,
            f"rope={self.rope}": bool(self.rope),
            f"global={self.global_scale}": bool(self.global_scale) and self.scale != "fp8_e4m3",
            f"scale={self.scale}": self.scale not in ("", "fp16", "bf16", "fp32") and not byte_scale,
        }
        return ", ".join(name for name, present in features.items() if present)


@dataclass(frozen=True)
class TensorView:
    """What a kernel needs of one tensor, as a compile key: every number that changes code is a field.

    Row metadata (scale, zero) is read at `slot * meta_stride + offset`, both in items of the plane's storage; a slot
    is one token, with channel/N it is N tokens and holds one scale per channel.
    Static scales have `static_items` items per head (`static_heads` 1 when one scale serves all heads).
    The newest tokens wait unquantised in a ring of `recent` rows of `recent_storage`, see `BoundTensor.split`.
    `part_bytes`: with `pack=page`, bytes per token of one head's part of a page, all its blocks; 0 where a field has
    its plane to itself. `has_global`: one more scale above all row scales. `rot`: rows are rotated before they are
    encoded (a fixed Hadamard matrix with signs, see the codec).
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
    part_bytes: int = 0
    has_global: bool = False
    rot: bool = False

    @property
    def quantised(self) -> bool:
        return self.bits < 16

    @property
    def is_int(self) -> bool:
        return self.number.startswith("int")

    @property
    def field_bits(self) -> int:
        """Bits of a code in its words; 3-bit codes have their third bit in words of their own, one bit per channel."""
        return 2 if self.two_parts else self.bits

    @property
    def two_parts(self) -> bool:
        """Whether codes lie in two planes: 2 low bits in `codes`, the third bit in `high`."""
        return self.number == "int3"

    @property
    def words(self) -> int:
        """16-bit words of one row of one head, in the plane `codes`."""
        return self.dim * self.field_bits // 16

    @property
    def high_words(self) -> int:
        """16-bit words of one row of third bits: bit b of word w is channel `b * high_words + w`."""
        return self.dim // 16 if self.two_parts else 0

    @property
    def code_items(self) -> int:
        """Elements of one row as the kernels address it: words below 8 bits, else channels."""
        return self.words if self.planar else self.dim

    @property
    def code_bytes(self) -> int:
        """Bytes of such an element."""
        return 2 if self.planar else self.bits // 8

    @property
    def meta_bits(self) -> int:
        return {"fp32": 32, "fp16": 16, "bf16": 16}.get(self.meta_storage, 8)

    @property
    def fields_per_word(self) -> int:
        return 16 // self.field_bits

    @property
    def channel_multiple(self) -> int:
        """Rows of a multiple of these channels end on a 16-bit word, the unit in which kernels read codes."""
        return 16 if self.two_parts else max(1, 16 // self.bits)

    @property
    def whole_words(self) -> bool:
        """Whether a row ends on a 16-bit word."""
        return self.dim % self.channel_multiple == 0

    @property
    def planar(self) -> bool:
        """Field j of word w is channel `j * words + w` in codes narrower than a byte, else channel `w * fields + j`."""
        return self.bits < 8

    @property
    def weighted(self) -> bool:
        """Whether field i of a byte is unpacked in place, as a number `2**(field_bits * i)` too large."""
        return self.planar and self.is_int

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
    def high_stripe_words(self) -> int:
        """`stripe_words` of the words of third bits."""
        return gcd(self.high_words, self.group) if self.granularity == "group" else self.high_words

    @property
    def middle_field(self) -> int:
        """log2 of the middle weight of a byte's fields, field i weighing `2**(bits * i)`."""
        return self.field_bits * (self.fields_per_word // 2 - 1) // 2 if self.planar else 0

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
    def meta_twice(self) -> bool:
        """Whether a matrix step of 16 items holds what moves the codes of a row twice: kernels then read it twice."""
        return self.meta_dot and self.groups in (4, 8)

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
        if self.by_channel or not self.weighted or self.two_parts:
            return False
        if self.granularity != "group":
            return True
        return self.stripes == 1 and self.dim // 2 // self.group == (self.dim - 1) // self.group

    @property
    def by_channel(self) -> bool:
        """channel/N: one scale per channel over N tokens, stored with the rows."""
        return self.granularity == "channel" and self.group > 0

    @property
    def formula_only(self) -> bool:
        """Whether no kernel knows this combination, although each of its features is known to one."""
        if self.rot and self.dim & (self.dim - 1):
            return True
        special = self.rot or self.two_parts or self.has_global or self.part_bytes > 0
        floats = self.number == "fp4_e2m1" or self.meta_bits == 8
        return (special and (self.recent > 0 or self.by_channel)) or (self.by_channel and self.quantised and floats)

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
