"""`kvplan calibrate`: static scales for a checkpoint, from captured tensors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvplan.cli.options import json_option
from kvplan.errors import InputError, UsageError


@click.command("calibrate")
@click.argument("captured", type=click.Path(path_type=Path))
@click.option("--held-out", required=True, type=click.Path(path_type=Path),
              help="Capture of another text, on which clipping is counted and the margin chosen.")  # fmt: skip
@click.option("--kv", metavar="F", default="fp8_e4m3", show_default=True, help="A format with static scales.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the scales here: .safetensors or .json.")
@json_option
def command(captured: Path, held_out: Path, kv: str, out: Path | None, as_json: bool) -> None:
    """Static scales of K and V per layer, from two files of kvplan capture with all layers, of two texts.

    Tensors are named as in checkpoints that vLLM and SGLang read: model.layers.I.self_attn.k_scale and v_scale.

    \b
    Examples:
      kvplan calibrate a.safetensors --held-out b.safetensors --out scales.safetensors
      kvplan calibrate a.safetensors --held-out b.safetensors --kv int8:head --json
    """
    if out is not None and out.suffix not in (".json", ".safetensors"):
        raise UsageError(f"{out}: scales are written as .safetensors or .json", "name one of them")
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: its folder does not exist", "create the folder or choose another file")
    from kvplan.quality.calibrate import calibrate, write

    found = calibrate(kv, captured, held_out)
    if out is not None:
        write(found, out)
    if as_json:
        click.echo(json.dumps({"schema": "kvplan.scales/1", **found.model_dump(mode="json")}))
        return
    click.echo(f"{found.format}: scales from {found.calibrated_on}, checked on {found.checked_on}")
    for t in found.tried:
        chosen = "  chosen" if t.margin == found.margin else ""
        click.echo(
            f"margin {t.margin:4.2f}: {t.clipped_k:.1e} of K and {t.clipped_v:.1e} of V clipped, predicted KL "
            f"{t.kl:.5f}{chosen}"
        )
