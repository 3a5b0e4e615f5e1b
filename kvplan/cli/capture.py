"""`kvplan capture`: a model's own queries, keys and values on a text, into a safetensors file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Literal

import click

from kvplan.cli.progress import Bar
from kvplan.errors import InputError
from kvplan.quality.models import DEFAULT
from kvplan.units import format_bytes, parse_count


@click.command("capture")
@click.argument("model", default=DEFAULT)
@click.option("--text", type=click.Path(path_type=Path), help="Text to read; default pydoc_data.topics of Python.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The safetensors file to write.")
@click.option("--layers", metavar="LIST", help="Layers such as 0,10,20-22; default all.")
@click.option("--tokens", metavar="N", default="1024", show_default=True, help="Positions; K and V are kept of all.")
@click.option("--first-token", metavar="N", type=click.IntRange(min=0),
              help="Tokens of the text to leave out; default 0, 20000 for the default text.")  # fmt: skip
@click.option("--queries", metavar="N", default="64", show_default=True, help="Positions kept of Q, up to the last.")
@click.option("--query-step", metavar="N", type=click.IntRange(min=1),
              help="Distance of these positions; default spreads them, with an odd distance.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["fp16", "bf16", "fp32"]), default="fp16", show_default=True,
              help="Stored dtype.")  # fmt: skip
def command(
    model: str,
    text: Path | None,
    out: Path,
    layers: str | None,
    tokens: str,
    first_token: int | None,
    queries: str,
    query_step: int | None,
    dtype: Literal["fp16", "bf16", "fp32"],
) -> None:
    """Post-RoPE Q and un-repeated K and V of MODEL, with a manifest; the text is not stored.

    MODEL is a model folder, a .gguf file, a downloaded hub id or smollm2-135m. Of MLA, the latent rows.

    \b
    Examples:
      kvplan capture --out kv.safetensors --layers 0,10,20
      kvplan capture ./my-model --text corpus.txt --out kv.safetensors --tokens 4096
    """
    from kvplan.quality.models import require

    if not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: its folder does not exist", "create the folder or choose another file")
    require()
    from kvplan.quality.capture import capture, parse_layers
    from kvplan.quality.prepare import Reading

    chosen = parse_layers(layers)
    with Bar(len(chosen) if chosen else None) as bar:
        bar.say("loading the model")
        made = capture(
            model,
            out,
            Reading(text, parse_count(tokens, "tokens"), first_token),
            layers=chosen,
            queries=parse_count(queries, "queries"),
            query_step=query_step,
            dtype=dtype,
            command=shlex.join(["kvplan", *sys.argv[1:]]),
            written=bar.advance,
        )
    kept = f"{len(made.layers)} layers x {made.text.tokens:,} tokens of {made.model}"
    click.echo(f"{out}: {kept}, {format_bytes(out.stat().st_size)}")
