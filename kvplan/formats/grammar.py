"""The format grammar: spellings to frozen values and back. Syntax only; grid.py makes layouts.

    kv     := format | pair
    format := number [":" granularity] {"," option}  |  name
    pair   := kivi2 kivi4 ["/" G] [",recent=" R]

Canonical spelling: options in the order of OPTIONS, defaults left out, lower case, no blanks; parse(spelling(f)) == f.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvplan.errors import UsageError, did_you_mean
from kvplan.formats.rules import check_meaning

PLAIN = ("fp32", "fp16", "bf16")
INTS = ("int8", "int7", "int6", "int5", "int4", "int3", "int2", "int1")
FP8 = ("fp8_e4m3", "fp8_e5m2")
FP4 = ("fp4_e2m1",)
CODEBOOKS = ("lm4", "lm3", "lm2")
NUMBERS = PLAIN + INTS + FP8 + FP4 + CODEBOOKS
STATIC = ("tensor", "head", "channel")
GRANULARITIES = (*STATIC, "token", "channel/N", "group/N")
NAMES = (
    "nvfp4", "mxfp4", "mxfp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8_ds_mla", "fp8_ds_v4",
    "nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "octave_k3v4", "octave_k3v3", "octave_k3v3_compact",
)  # fmt: skip
PAIRS = ("kivi2", "kivi4")
OPTIONS = ("asym", "row", "flat", "scale", "global", "recent", "flush", "pack", "rot", "rope")
VALUES = {
    "scale": ("fp16", "bf16", "fp32", "e4m3", "e8m0", "model"),
    "global": ("fp32",),
    "flush": ("whole", "oldest"),
    "pack": ("slot", "page"),
    "rope": ("fp16", "bf16"),
}
_FLAGS = ("asym", "row", "flat", "rot")
_NOT_OURS = {"token-head", "token_head", "per_token_head", "per-token-head", "per_token", "per-token"}
_GROUPED = re.compile(r"(channel|group)/([1-9]\d{0,5})")
_PAIR = re.compile(r"(kivi[24])(?:/([1-9]\d{0,5}))?(?:,recent=([1-9]\d{0,6}))?")


@dataclass(frozen=True)
class Format:
    """One number format with its granularity and options, defaults filled in.

    Attributes:
        number: one of NUMBERS.
        granularity: tensor, head, channel, token, channel/N or group/N (kept as `channel` / `group` with `group` > 0);
            empty for 16 and 32 bit.
        group: N of channel/N (tokens) or group/N (channels), else 0.
        row: groups run along the rank's whole row of a token.
        flat: groups run along all values of the rank, token after token; one may reach into the next token.
        recent: tokens kept unquantised, 0 for none.
    """

    number: str
    granularity: str = ""
    group: int = 0
    asym: bool = False
    row: bool = False
    flat: bool = False
    scale: str = ""
    global_scale: str = ""
    recent: int = 0
    flush: str = ""
    pack: str = ""
    rot: bool = False
    rope: str = ""

    @property
    def is_static(self) -> bool:
        """Scales fixed ahead of time, one set per layer."""
        return self.granularity in STATIC and not self.group

    @property
    def by_channel(self) -> bool:
        """channel/N: one scale per channel over N tokens."""
        return self.granularity == "channel" and self.group > 0

    @property
    def spelling(self) -> str:
        if self.number in PLAIN:
            return self.number
        where = f"{self.granularity}/{self.group}" if self.group else self.granularity
        text = self.number if where == default_granularity(self.number) else f"{self.number}:{where}"
        default = _defaults(self.granularity, self.group, self.recent)
        options = {
            "asym": self.asym,
            "row": self.row,
            "flat": self.flat,
            "scale": self.scale if self.scale != default["scale"] else "",
            "global": self.global_scale,
            "recent": self.recent if self.recent != default["recent"] else 0,
            "flush": self.flush if self.flush != default["flush"] else "",
            "pack": self.pack,
            "rot": self.rot,
            "rope": self.rope,
        }
        for name in OPTIONS:
            value = options[name]
            if value:
                text += f",{name}" if value is True else f",{name}={value}"
        return text


@dataclass(frozen=True)
class Named:
    """A format known by a name of its own (nvfp4, q8_0, fp8_ds_mla ...)."""

    name: str

    @property
    def spelling(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pair:
    """KIVI: K by channel over G tokens, V by groups of G channels, both asymmetric, R recent tokens unquantised."""

    name: str
    group: int = 32
    recent: int = 128

    @property
    def spelling(self) -> str:
        text = self.name if self.group == 32 else f"{self.name}/{self.group}"
        return text if self.recent == 128 else f"{text},recent={self.recent}"

    @property
    def k(self) -> Format:
        return parse_format(f"int{self.name[-1]}:channel/{self.group},asym,recent={self.recent}")

    @property
    def v(self) -> Format:
        return parse_format(f"int{self.name[-1]}:group/{self.group},asym,recent={self.recent}")


def default_granularity(number: str) -> str:
    if number in FP8:
        return "tensor"
    return "group/16" if number in FP4 else "token"


def _defaults(granularity: str, group: int, recent: int) -> dict[str, str | int]:
    by_channel = granularity == "channel" and group > 0
    flush = "" if not (recent or by_channel) else "whole" if by_channel else "oldest"
    return {
        "scale": "fp32" if granularity in STATIC and not group else "fp16",
        "recent": group if by_channel else 0,
        "flush": flush,
    }


def parse_kv(text: str) -> Format | Named | Pair:
    """Read what `--kv` accepts: a format or a pair."""
    clean = text.strip().lower()
    if not clean.startswith(PAIRS):
        return parse_any(clean)
    match = _PAIR.fullmatch(clean)
    if not match:
        raise UsageError(
            f"format {text!r}: a KIVI pair is kivi2[/G][,recent=R]", "for example kivi2 or kivi4/64,recent=128"
        )
    pair = Pair(match.group(1), int(match.group(2) or 32), int(match.group(3) or 128))
    if pair.recent % pair.group:
        raise UsageError(
            f"format {text!r}: recent={pair.recent} is not a multiple of the group {pair.group}",
            f"use recent={-(-pair.recent // pair.group) * pair.group}",
        )
    return pair


def parse_any(text: str) -> Format | Named:
    """Read one tensor's format: a number with options, or a name."""
    clean = text.strip().lower()
    if clean.startswith(PAIRS):
        raise UsageError(f"format {text!r} is a pair for K and V together", f"write --kv {clean}")
    return Named(clean) if clean in NAMES else parse_format(clean)


def parse_format(text: str) -> Format:
    """Read `number[:granularity]{,option}`.

    Raises:
        UsageError: anything outside the grammar, with the nearest spelling in the hint.
    """
    clean = text.strip().lower()
    head, *raw = clean.split(",")
    number, colon, where = head.partition(":")
    if number not in NUMBERS:
        known = (*NUMBERS, *NAMES, *PAIRS)
        if number in NAMES:
            raise UsageError(f"format {text!r}: {number} takes no granularity and no options", f"write just {number}")
        if number in ("fp8", "e4m3", "fp8_e4m3fn"):
            raise UsageError(f"unknown format {text!r}", "write fp8_e4m3 or fp8_e5m2")
        raise UsageError(f"unknown format {text!r}", did_you_mean(number, known))
    if number in PLAIN:
        if colon or raw:
            raise UsageError(f"format {text!r}: {number} takes no granularity and no options", f"write just {number}")
        return Format(number)
    granularity, group = _granularity(text, where if colon else default_granularity(number))
    options = _options(text, raw)
    default = _defaults(granularity, group, int(options.get("recent", 0)))
    made = Format(
        number,
        granularity,
        group,
        asym="asym" in options,
        row="row" in options,
        flat="flat" in options,
        scale=str(options.get("scale", default["scale"])),
        global_scale=str(options.get("global", "")),
        recent=int(options.get("recent", default["recent"])),
        flush=str(options.get("flush", default["flush"])),
        pack=str(options.get("pack", "")),
        rot="rot" in options,
        rope=str(options.get("rope", "")),
    )
    check_meaning(text, made, options)
    return made


def _granularity(text: str, where: str) -> tuple[str, int]:
    if where in (*STATIC, "token"):
        return where, 0
    match = _GROUPED.fullmatch(where)
    if match:
        return match.group(1), int(match.group(2))
    if where in _NOT_OURS:
        raise UsageError(
            f"format {text!r}: unknown granularity {where!r}", "write token: one scale per token of a head"
        )
    raise UsageError(f"format {text!r}: unknown granularity {where!r}", did_you_mean(where, GRANULARITIES))


def _options(text: str, raw: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in raw:
        name, equals, value = item.strip().partition("=")
        if name not in OPTIONS or name in options or bool(equals) == (name in _FLAGS):
            what = "given twice" if name in options else "not understood"
            raise UsageError(f"format {text!r}: option {item!r} {what}", did_you_mean(name, OPTIONS))
        if name == "recent":
            if not re.fullmatch(r"[1-9]\d{0,6}", value):
                raise UsageError(f"format {text!r}: recent={value} is not a number of tokens", "for example recent=128")
        elif name in VALUES and value not in VALUES[name]:
            raise UsageError(f"format {text!r}: {name}={value} is unknown", did_you_mean(value, VALUES[name]))
        options[name] = value or name
    return options
