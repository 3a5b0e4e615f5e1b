"""What differs between Triton's versions, and between its interpreter (CPU tensors, no GPU) and compiled kernels.

The interpreter has no inline assembly, returns garbage from bfloat16 dots and, with numpy 2.4 on Triton 3.6, cannot use
a tensor as a loop bound. Kernels branch on INTERPRET, which is fixed when Triton is imported.
"""

import torch
import triton
import triton.language as tl

INTERPRET = tl.constexpr(triton.knobs.runtime.interpret)

_TRITON_3_4 = triton.__version__.startswith("3.4.")

# Columns of a matrix step: 8, but Triton 3.4 takes no less than 16.
LEAST_COLUMNS = 16 if _TRITON_3_4 else 8


def capability_of(device: torch.device) -> int:
    """10 * major + minor of a GPU; the interpreter counts as sm_90."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def has_dependent_launch(capability: int) -> bool:
    """Whether a kernel may start before its predecessor ends (sm_90; Triton 3.4's calls for it don't compile)."""
    return capability >= 90 and not _TRITON_3_4 and not INTERPRET


def dependent_launch(wanted: bool) -> dict[str, bool]:
    """Launch option: the kernel's programs may take their places before the kernel ahead of it ends."""
    return {"launch_pdl": True} if wanted else {}


@triton.jit
def loop_bound(n):
    """`n`, usable in `range` in both modes."""
    if INTERPRET:
        return n.handle.data.item()
    else:
        return n


@triton.jit
def dot(a, b, acc):
    """`a @ b + acc` in fp32."""
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc)


@triton.jit
def cast(x, DTYPE: tl.constexpr):
    """fp32 `x` to DTYPE, round to nearest even (the interpreter cuts bfloat16 off instead)."""
    if INTERPRET and tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return even.to(tl.float32, bitcast=True).to(tl.bfloat16)
    else:
        return x.to(DTYPE)


@triton.jit
def as_fp16(w):
    """The low 16 bits of an integer tile, read as fp16."""
    return w.to(tl.int16).to(tl.float16, bitcast=True)
