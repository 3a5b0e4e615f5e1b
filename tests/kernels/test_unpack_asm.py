"""The inline assembly of the tile functions, run by a small emulator: it must do what the interpreter's twin does.

The interpreter cannot run assembly, and on a machine without a GPU nothing else would.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from kvplan_kernels.codecs.block_tiles import e4m3_scales, unpack_fp4
from kvplan_kernels.codecs.blocks import e2m1_values
from kvplan_kernels.codecs.grid_tiles import unpack_e5m2, unpack_int8
from kvplan_kernels.codecs.planar_tiles import unpack_int2, unpack_int3, unpack_int4
from torch import Tensor

MASK = 0xFFFFFFFF
WORDS = torch.arange(2**16)


def assembly(function: Any, which: int) -> str:
    """The `which`-th assembly string of a tile function."""
    text = re.findall(r"inline_asm_elementwise\(\s*(\"{3}.*?\"{3}|\".*?\")", inspect.getsource(function.fn), re.S)
    return text[which].strip('"')


def prmt(a: Tensor, b: Tensor, selector: int) -> Tensor:
    both, out = a | b << 32, torch.zeros_like(a)
    for i in range(4):
        nibble = selector >> 4 * i & 0xF
        assert nibble < 8, "sign replication is not used"
        out |= (both >> 8 * nibble & 0xFF) << 8 * i
    return out


def lop3(a: Tensor, b: Tensor, c: Tensor, table: int) -> Tensor:
    out = torch.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            x, y, z = ((v if i >> at & 1 else ~v) for v, at in ((a, 2), (b, 1), (c, 0)))
            out |= x & y & z
    return out & MASK


def run(asm: str, outputs: int, inputs: list[Tensor]) -> list[Tensor]:
    """Results of a block of 32-bit instructions, as registers; `mov.b32 {x, y}, z` splits one into 16-bit halves."""
    registers = {f"${outputs + i}": x for i, x in enumerate(inputs)}

    def value(name: str) -> Tensor:
        return registers[name] if name in registers else torch.full_like(inputs[0], int(name, 0))

    for line in filter(None, (part.strip(" {}\n") for part in re.split(r";", asm))):
        operation, _, rest = line.partition(" ")
        if operation == ".reg":
            continue
        if operation == "mov.b32":
            low, high, source = re.findall(r"[$\w]+", rest)
            registers[low], registers[high] = value(source) & 0xFFFF, value(source) >> 16
            continue
        target, *names = (x.strip() for x in rest.split(","))
        given = [value(x) for x in names]
        if operation == "lop3.b32":
            registers[target] = lop3(*given[:3], int(names[3], 0))
        elif operation == "prmt.b32":
            registers[target] = prmt(given[0], given[1], int(names[2], 0))
        elif operation in ("shl.b32", "shr.u32"):
            registers[target] = (given[0] << given[1] if operation[2] == "l" else given[0] >> given[1]) & MASK
        else:
            function = {"and.b32": torch.bitwise_and, "or.b32": torch.bitwise_or, "xor.b32": torch.bitwise_xor}
            registers[target] = function[operation](*given)
    return [registers[f"${i}"] for i in range(outputs)]


def halves(registers: list[Tensor]) -> Tensor:
    """fp16 values of the two words in each register, `(outputs, 2, n)`."""
    both = torch.stack([torch.stack([r & 0xFFFF, r >> 16]) for r in registers])
    return both.to(torch.int32).to(torch.int16).view(torch.float16).float()


def pair(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words beside others in one register, and both as `(2, n)`."""
    other = words.flip(0) ^ 0x5A5A
    return words | other << 16, torch.stack([words, other])


def field(words: Tensor, at: int, bits: int) -> Tensor:
    return (words >> at & (1 << bits) - 1).float()


def test_e2m1() -> None:
    register, words = pair(WORDS)
    got = halves(run(assembly(unpack_fp4, 0), 4, [register]))
    for j in range(4):
        assert torch.equal(got[j] * 2.0**14, e2m1_values(words >> 4 * j & 0xF)), j


def test_third_bits() -> None:
    low, words = pair(WORDS)
    high, third = pair((WORDS * 40503 + 7) & 0xFFFF)
    none = torch.zeros_like(high)
    for odd in (0, 1):
        got = halves(run(assembly(unpack_int3, 0), 8, [low, none, high] if odd else [low, high, none]))
        for j in range(8):
            want = field(words, 2 * j, 2) + 4 * field(third, 2 * j + odd, 1)
            assert torch.equal(got[j] * 2.0**24, want * 4 ** (j % 4)), (odd, j)


@pytest.mark.parametrize(("function", "bits"), [(unpack_int4, 4), (unpack_int2, 2)])
def test_planes_in_place_and_nested(function: Any, bits: int) -> None:
    register, words = pair(WORDS)
    fields, half = 16 // bits, 8 // bits
    for which in (0, 1):
        got = halves(run(assembly(function, which), fields, [register])) * 2.0**24
        for j in range(fields):
            want = field(words, bits * j, bits) * 2 ** (bits * (j % half))
            if which == 0 and j >= half:
                want = field(words, 8, bits * (j % half + 1))
            assert torch.equal(got[j], want), (which, j)


def test_bytes() -> None:
    register, words = pair(WORDS)
    for which, flip in ((0, 0), (1, 0x80)):
        got = halves(run(assembly(unpack_int8, which), 2, [register])) * 2.0**24
        for j in range(2):
            assert torch.equal(got[j], ((words >> 8 * j & 0xFF) ^ flip).float())
    got = run(assembly(unpack_e5m2, 0), 2, [register])
    assert torch.equal(got[0] & 0xFFFF, (words[0] & 0xFF) << 8) and torch.equal(got[1] >> 16, words[1] & 0xFF00)


def test_four_scales_of_a_word() -> None:
    codes = torch.arange(0x7F)
    word = codes | codes.flip(0) << 8 | (codes * 3 % 0x7F) << 16 | codes << 24
    got = run(assembly(e4m3_scales, 0), 4, [word])
    for i, register in enumerate(got):
        want = (word >> 8 * i & 0xFF).to(torch.uint8).view(torch.float8_e4m3fn).float()
        assert torch.equal(register.to(torch.int16).view(torch.float16).float() * 256, want), i
