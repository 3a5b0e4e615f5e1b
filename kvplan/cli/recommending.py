"""What `kvplan recommend` does around the recommendation: several GPUs, files of evidence, --out and --verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kvplan.errors import ExitCode, InputError, UsageError
from kvplan.recommend.evidence import Body
from kvplan.recommend.types import Fleet, Recommendation, RecommendRequest


@dataclass(frozen=True)
class Asked:
    """Options beside the request itself."""

    evidence: tuple[Path, ...] = ()
    tensors: Path | None = None
    validation: Path | None = None
    price: tuple[str, ...] = ()
    verify: bool = False
    verify_all: Path | None = None
    out: Path | None = None
    as_json: bool = False


def run(request: RecommendRequest, asked: Asked) -> int:
    """Answer, print, write and verify; the exit code."""
    from kvplan.cli.this_gpu import device_here

    gpus = [device_here() if name == "auto" else name for name in request.gpu.split(",") if name]
    prices = _prices(asked.price, gpus)
    if not gpus:
        raise UsageError("no GPU is named", "give --gpu G, or --gpu auto for this machine's")
    if asked.out is not None and not asked.out.absolute().parent.is_dir():
        raise InputError(f"cannot write {asked.out}: its folder does not exist", "create it or choose another file")
    one, verifies = len(gpus) == 1, asked.verify or asked.verify_all is not None
    if not one and (verifies or asked.out or asked.validation):
        raise UsageError("--verify, --validation and --out are for one GPU, and several are given", "give one --gpu")
    if one and prices:
        raise UsageError("a price ranks several GPUs, and one is given", "give --gpu G,G, or drop --price")
    ask = _asker(request, asked)
    if not one:
        from kvplan.recommend.fleet import rank

        _show_fleet(rank([ask(gpu) for gpu in gpus], prices), asked.as_json)
        return ExitCode.OK
    result = ask(gpus[0])
    if asked.out is not None and result.recommended is not None:
        asked.out.write_text(result.recommended.config, encoding="utf-8")
    if not verifies:
        _show(result, asked.as_json)
        return ExitCode.OK
    from kvplan.cli.verify import verify

    return verify(result, asked.as_json, lambda: _show(result, False), asked.verify_all)


def _asker(request: RecommendRequest, asked: Asked) -> Callable[[str], Recommendation]:
    from kvplan.cli.progress import Bar
    from kvplan.recommend import recommend

    bodies, measured = _bodies(request, asked), None
    if asked.validation:
        from kvplan.cli.evidence_files import measured_times

        measured = measured_times(asked.validation)

    def ask(gpu: str) -> Recommendation:
        with Bar(1) as bar:
            return recommend(request.model_copy(update={"gpu": gpu}), bodies, measured, bar.say)

    return ask


def _bodies(request: RecommendRequest, asked: Asked) -> Sequence[Body]:
    if not asked.evidence and asked.tensors is None:
        return ()
    from kvplan.cli.evidence_files import from_report, from_tensors

    found = [from_report(path, request.model) for path in asked.evidence]
    return [*found, from_tensors(asked.tensors, request.model)] if asked.tensors else found


def _prices(given: Sequence[str], gpus: Sequence[str]) -> dict[str, float]:
    """GPU to the price that the user gave."""
    prices = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            raise UsageError(f"price {text!r} is not G=X", "for example --price h200=3.50") from None
        if not equals or not prices[name] > 0:
            raise UsageError(f"price {text!r} is not G=X with X above 0", "for example --price h200=3.50")
        if name not in gpus:
            raise UsageError(f"a price is given for {name}, which is not among the GPUs", "GPUs: " + ", ".join(gpus))
    return prices


def _show(result: Recommendation, as_json: bool) -> None:
    if as_json:
        click.echo(result.to_json())
        return
    from kvplan.report.recommendation import print_recommendation

    print_recommendation(result)


def _show_fleet(fleet: Fleet, as_json: bool) -> None:
    if as_json:
        click.echo(fleet.to_json())
        return
    from kvplan.report.recommendation import print_fleet

    print_fleet(fleet)
