"""The device a validation runs on: whether it is there, what it is, which versions drive it."""

from __future__ import annotations

import importlib.util
import platform

from kvplan import __version__
from kvplan.errors import NoDeviceError
from kvplan.validate.report import DeviceInfo

INSTALL = "install them with: pip install 'kvplan-advisor[gpu]'"


def require(device: str) -> None:
    """Refuse early and clearly when torch, triton, numpy (Triton's interpreter is made of it) or the GPU is missing.

    Raises:
        NoDeviceError: with what to do instead.
    """
    needed = ("torch", "triton", "numpy") if device == "cpu" else ("torch", "triton")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise NoDeviceError(f"validate needs {' and '.join(missing)}, which this Python does not have", INSTALL)
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError(
            "no CUDA GPU is available to torch",
            "run on a machine with a GPU, or check correctness only with --device cpu (small shapes, no speed)",
        )


def device_info(device: str) -> DeviceInfo:
    """Name, memory and versions of the device."""
    import torch
    import triton

    versions = {
        "kvplan": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if device == "cpu":
        return DeviceInfo(name="Triton interpreter on the CPU", versions=versions)
    properties = torch.cuda.get_device_properties(0)
    versions["cuda"] = str(torch.version.cuda)
    return DeviceInfo(
        name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        memory_bytes=torch.cuda.mem_get_info()[1],
        num_sms=properties.multi_processor_count,
        versions=versions,
    )


def free_bytes(device: str) -> int | None:
    """Device memory that is free now; None for the interpreter, which has limits of its own."""
    if device == "cpu":
        return None
    import torch

    return int(torch.cuda.mem_get_info()[0])
