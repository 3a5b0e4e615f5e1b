"""Static scales from captured tensors: the margin is chosen, and clipping counted, on another text.

Names are those of checkpoints that engines read: `model.layers.I.self_attn.k_scale` and `v_scale` (vLLM and SGLang take
one number each). Scales by head or channel have the same names and the shape of the layout's static plane.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kvplan.captured import CaptureFile, read_capture
from kvplan.errors import InputError, UsageError
from kvplan.formats.grammar import parse_any
from kvplan.quality.law import kl_of
from kvplan.quality.request import is_calibrated
from kvplan.quality.scales import Calibration, Tried
from kvplan.quality.tensors import TensorErrors

MARGINS = (1.0, 1.1, 1.25, 1.5, 2.0)
NAME = "model.layers.{}.self_attn.{}_scale"


def calibrate(spelling: str, learn: Path, held_out: Path, margins: Sequence[float] = MARGINS) -> Calibration:
    """Choose a margin on `held_out` for scales from `learn`, two capture files of one model.

    Raises:
        UsageError: a format without static scales.
        InputError: files of different models, layers or shapes, or twice the same text.
    """
    name = parse_any(spelling).spelling
    if not is_calibrated(name):
        raise UsageError(f"{name} has no static scales", "use :tensor, :head or :channel, for example fp8_e4m3:head")
    if "asym" in name:
        raise UsageError(f"{name} has zeros beside its scales, which no engine reads", "leave asym out")
    first, second = read_capture(learn), read_capture(held_out)
    check_pair(first, second)
    tried, found = [], {}
    with torch.inference_mode():
        for margin in margins:
            errors = TensorErrors(second, first, margin=margin)
            kl = kl_of(errors.error("k", name), errors.error("v", name))
            clipped = [errors.clipped(role, name) for role in ("k", "v")]
            tried.append(Tried(margin=margin, clipped_k=clipped[0], clipped_v=clipped[1], kl=kl))
            found[margin] = errors
    best = min(tried, key=lambda t: t.kl)
    scales = {
        NAME.format(layer, role): scale.float().tolist()
        for role in ("k", "v")
        for layer, scale in found[best.margin].scales(role, name).items()
    }
    return Calibration(
        format=name,
        model=first.model,
        calibrated_on=first.source,
        checked_on=second.source,
        tried=tuple(tried),
        margin=best.margin,
        scales=scales,
    )


def check_pair(a: CaptureFile, b: CaptureFile) -> None:
    """Refuse scales of `a` for `b`.

    Raises:
        InputError: other models or layers, or the same tensors twice.
    """
    kept = [(f.model, [x.layer for x in f.layers], f.layers[0].k.shape[::2], f.layers[0].v.shape[::2]) for f in (a, b)]
    if kept[0] != kept[1]:
        raise InputError("the two files are of different models or layers", "capture the same layers twice")
    if torch.equal(a.layers[0].k[:, : b.tokens], b.layers[0].k[:, : a.tokens]):
        raise InputError("the held-out tensors are those that scales come from", "capture another text: --text FILE")


def write(found: Calibration, out: Path) -> None:
    """As .json (all of it) or .safetensors (the scales, one number each where there is one)."""
    if out.suffix == ".json":
        out.write_text(json.dumps(found.model_dump(), indent=1) + "\n", encoding="utf-8")
        return
    from safetensors.torch import save_file

    tensors = {name: torch.tensor(rows) for name, rows in found.scales.items()}
    whole = {"kvplan": json.dumps(found.model_dump(exclude={"scales"})), "format": "pt"}
    save_file({n: x.reshape(()) if x.numel() == 1 else x for n, x in tensors.items()}, out, whole)
