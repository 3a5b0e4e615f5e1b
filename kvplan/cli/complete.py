"""What a shell offers after a word: models, GPUs, engines, formats. Nothing is imported until somebody presses Tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(names: Callable[[click.Context], Iterable[str]]) -> Completer:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names(context) if name.startswith(incomplete)]

    return complete


def _models(_context: click.Context) -> Iterable[str]:
    from kvplan.specs.load import list_models

    return list_models()


def _gpus(_context: click.Context) -> Iterable[str]:
    from kvplan.specs.load import list_devices

    return list_devices()


def _engines(_context: click.Context) -> Iterable[str]:
    from kvplan.engines import engine_names

    return engine_names()


def _versions(context: click.Context) -> Iterable[str]:
    from kvplan.engines import engine_names
    from kvplan.recommend.offers import versions

    engine = context.params.get("engine")
    return versions(engine) if engine in engine_names() else ()


def _formats(context: click.Context) -> Iterable[str]:
    from kvplan.engines import engine_names, load_engine
    from kvplan.recommend.offers import USUAL

    engine = context.params.get("engine")
    if engine in engine_names():
        return dict.fromkeys(name for each in load_engine(engine).formats for name in each.names)
    return ("bf16", "fp16", *USUAL)


models, gpus, engines, versions, formats = map(_completer, (_models, _gpus, _engines, _versions, _formats))
"""For `shell_complete` of an argument or option."""
