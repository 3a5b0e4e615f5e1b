"""Compile a Triton kernel ahead of time, without a GPU, and count what the compiler made of it.

Works on Triton 3.4 to 3.9. Counts come from `cuobjdump` and `nvdisasm`, which ship inside Triton's wheel.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# The architecture whose counts are recorded.
GOLDEN_CAPABILITY = 90
GOLDEN_TRITON = "3.6.0"
_LABEL = re.compile(r"^(\.L_x?_?\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*);")
_TARGET = re.compile(r"`\((\.L_x?_?\w+)\)")


@dataclass(frozen=True)
class Report:
    """What one compiled kernel costs.

    Attributes:
        registers: per thread.
        shared_bytes: per program.
        spills: local loads and stores in the whole kernel.
        loop: instructions of the main loop by opcode: the innermost loop with matrix instructions and asynchronous
            copies, else with matrix instructions, else the longest.
        asynchronous_copies: cp.async in the PTX.
        matrix_instructions: mma in the PTX, those of warp groups (wgmma, tcgen05) included.
    """

    registers: int
    shared_bytes: int
    spills: int
    loop: dict[str, int]
    asynchronous_copies: int
    matrix_instructions: int

    @property
    def loop_instructions(self) -> int:
        return sum(self.loop.values())

    def count(self, *opcodes: str) -> int:
        """Instructions of the main loop with these opcodes (without modifiers)."""
        return sum(self.loop.get(op, 0) for op in opcodes)


def capabilities(doc: str | None) -> list[int]:
    """The `--capability` options of a check's command line, sm_90 without any."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--capability", type=int, action="append", help="10 * major + minor, e.g. 80, 90, 100")
    return parser.parse_args().capability or [GOLDEN_CAPABILITY]


def compile_ahead(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, int],
    capability: int = 90,
) -> Any:
    """Compile `kernel` for a CUDA `capability` (10 * major + minor).

    Args:
        signature: Triton type of each run-time argument, e.g. `*fp16`, `i32`; pointers are taken as 16-byte aligned.
        constants: value of each constexpr argument.
        options: num_warps, num_stages, maxnreg ...

    Returns:
        Triton's compiled kernel (`.asm`, `.metadata`).
    """
    kinds = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    missing = [n for n, kind in kinds.items() if kind == "constexpr" and n not in constants]
    assert not missing, f"neither in signature nor in constants: {missing}"
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=dict(constants), attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))


def report(compiled: Any) -> Report:
    """Count registers, spills and instructions of a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _run(TOOLS / "cuobjdump", "-res-usage", cubin)
        sass = _run(TOOLS / "nvdisasm", "-c", cubin)
    registers = re.search(r"REG:(\d+)", usage)
    assert registers, usage
    instructions, loops = _parse(sass)
    ptx = compiled.asm["ptx"]
    return Report(
        registers=int(registers.group(1)),
        shared_bytes=compiled.metadata.shared,
        spills=sum(op.startswith(("LDL", "STL")) for op in instructions),
        loop=_main_loop(instructions, loops),
        asynchronous_copies=ptx.count("cp.async.c"),
        matrix_instructions=sum(ptx.count(mma) for mma in ("mma.sync", "wgmma.mma_async", "tcgen05.mma")),
    )


def _run(tool: Path, *arguments: object) -> str:
    return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def _parse(sass: str) -> tuple[list[str], list[tuple[int, int]]]:
    """(opcodes in order, loops as (first, last) positions), a loop being a backward branch."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for line in sass.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label.group(1)] = len(opcodes)
        elif found := _INSTRUCTION.search(line):
            opcodes.append(found.group(1))
            target = _TARGET.search(found.group(2))
            if found.group(1).startswith("BRA") and target and target.group(1) in labels:
                loops.append((labels[target.group(1)], len(opcodes) - 1))
    return opcodes, loops


def _main_loop(opcodes: list[str], loops: list[tuple[int, int]]) -> dict[str, int]:
    def has(span: tuple[int, int], opcode: str) -> bool:
        return any(op.startswith(opcode) for op in opcodes[span[0] : span[1] + 1])

    with_matrix = [a for a in loops if has(a, "HMMA") or has(a, "HGMMA")]
    inner = [a for a in with_matrix if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in with_matrix)]
    candidates = [a for a in inner if has(a, "LDGSTS")] or inner or loops
    if not candidates:
        return {}
    first, last = max(candidates, key=lambda a: a[1] - a[0])
    return dict(Counter(op.split(".")[0] for op in opcodes[first : last + 1]))
