"""Which shipped device this machine's GPU is."""

from __future__ import annotations

from kvplan.errors import NoDeviceError


def device_here() -> str:
    """Id of the device whose name the driver's begins with, the memory deciding between several of one name.

    Raises:
        NoDeviceError: the driver lists no GPU, or one that kvplan has no figures of.
    """
    from kvplan.cli.examine import examine
    from kvplan.specs.load import list_devices, load_device

    found = examine()["gpus"]
    if not found:
        raise NoDeviceError("--gpu auto: nvidia-smi lists no GPU", "name one, for example --gpu h200")
    name = found[0]["name"]
    alike = [d for d in map(load_device, list_devices()) if _same(name, d.name)]
    if not alike:
        raise NoDeviceError(
            f"--gpu auto: kvplan has no figures of {name}", "name a shipped device, or write a device file"
        )
    mib = int("".join(c for c in found[0]["memory"] if c.isdigit()) or 0)
    return min(alike, key=lambda d: abs(d.memory_bytes - mib * 2**20)).id


def _same(driver: str, spec: str) -> bool:
    """`NVIDIA H200` and `NVIDIA H200 (SXM)`: the words of the shorter one begin the other's."""
    a, b = (text.replace("(", "").replace(")", "").replace("-", " ").lower().split() for text in (driver, spec))
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter] or set(a) >= set(b)
