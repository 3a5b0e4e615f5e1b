"""`kvplan recommend --verify`: the recommended and the runner-up run on this machine, and the verdict held to it.

`--verify-all` runs every format that has kernels and holds the time model to them. A model with windows has several
layer groups, and each is run: a step reads all of them. The measurement is one function from (request, spec, source,
file) to a validation report, so that a test can put another in its place; everything else here compares.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.cli.evidence_files import formats_of
from kvplan.errors import ExitCode, UnsupportedError, UsageError
from kvplan.memory.groups import roles
from kvplan.plan import PlanRequest, resolve
from kvplan.recommend.timemodel import attention_seconds
from kvplan.recommend.types import Candidate, Recommendation
from kvplan.report.verification import CLOSE, Row, Verified, compare, lines
from kvplan.specs.load import load_device, load_model

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

Measure = Callable[[Any, Any, str, Path | None], Any]
LOST = "the device was lost"


def measure(request: Any, spec: Any, source: str, file: Path | None) -> Any:
    """The real thing: `kvplan validate` of these formats, to its last report.

    Args:
        file: written after every format, and gone on with if it is there; None: kept nowhere.
    """
    from kvplan.cli.progress import Bar
    from kvplan.validate.device import device_info
    from kvplan.validate.launch import start
    from kvplan.validate.resume import check_same, read_report

    report = None
    if file is not None and file.exists():
        report = read_report(file)
        check_same(report, request, device_info(request.device))
        if report.complete:
            return report
    with Bar(len(request.formats)) as bar:
        for found in start(request, spec, source, shlex.join(["kvplan", *sys.argv[1:]]), bar.say, report):
            report = found
            bar.advance()
            if file is not None:
                report.save(file)
    return report


def verify(
    result: Recommendation, as_json: bool, show: Callable[[], None], every: Path | None = None, device: str = "cuda"
) -> int:
    """Measure, compare, print; exit code 6 if the verdict changed or a check is red.

    Args:
        every: also run every other format, and keep the validations in this folder; then exit code 6 as well if a
            format is red, predicted too far off or in the wrong order.

    Raises:
        NoDeviceError: there is no GPU here.
        UnsupportedError: nothing is recommended, or neither choice has kernels.
        InputError: a file of the folder is of another request or machine.
    """
    from kvplan.validate import device as machine

    machine.require(device)
    if every is not None:
        every.mkdir(parents=True, exist_ok=True)
    found = verified(result, measure, every, device)
    if as_json:
        parts = {"recommendation": json.loads(result.to_json()), "verification": asdict(found)}
        click.echo(json.dumps({"schema": "kvplan.verification/1", **parts}, indent=1))
    else:
        show()
        for line in lines(found):
            click.echo(line)
    good = found.verdict == "confirmed"
    if every is not None:
        good = good and found.comparison.holds and all(r.passed for r in found.rows)
    return ExitCode.OK if good else ExitCode.CHECK_FAILED


def verified(result: Recommendation, how: Measure, every: Path | None = None, device: str = "cuda") -> Verified:
    """Run every layer group through `how` and compare.

    Raises:
        UnsupportedError: nothing is recommended, or kvplan has no kernel for what is.
    """
    from kvplan.validate.subject import kernel_groups

    if result.recommended is None:
        raise UnsupportedError("nothing is recommended, so there is nothing to verify", "relax a bound first")
    spec, gpu = load_model(result.request.model), load_device(result.request.gpu)
    chosen = [c.candidate for c in (result.recommended, result.runner_up) if c]
    words = list(dict.fromkeys(_words(c) for c in chosen))
    report: Any = None
    rows: list[Row] = []
    by_word: list[list[Row]] = [[] for _ in words]
    for group in kernel_groups(spec):
        layers, without = len(spec.positions(group)), LOST
        ran: tuple[Row, ...] = ()
        if report is None or report.complete:
            request, without = _request(spec, group.name, chosen[0], words, result, every is not None, device)
            file = every / f"validate_{spec.id}_{group.name}.json" if every else None
            report = how(request, spec, result.request.model, file)
            ran = rows_of(report, spec, gpu)
        wanted = [_row_of(text, ran) or _not_run(text, group.name, layers, without or LOST) for text in words]
        rows += [*wanted, *(r for r in ran if every and r not in wanted)]
        for of_word, row in zip(by_word, wanted, strict=True):
            of_word.append(row)
    verdict, reason = _verdict(by_word, report, result)
    return Verified(
        verdict=verdict,
        reason=reason,
        device=report.device.name,
        context=report.request.context,
        batch=report.request.batch,
        rows=tuple(rows),
        comparison=compare(rows),
    )


def rows_of(report: Any, spec: ModelSpec, device: DeviceSpec) -> tuple[Row, ...]:
    """Each format of a validation beside the time model's answer."""
    rows = []
    for ran in report.results:
        note = f": {ran.error}" if ran.error else ""
        red = [c.name for c in ran.checks if not c.passed]
        note += f": red {', '.join(red)}" if red else ""
        equal = None if ran.cache_bytes is None else ran.cache_bytes == ran.planned_bytes
        seconds, predicted = ran.times and ran.times.fused_seconds, predicted_seconds(report, ran.format, spec, device)
        off = predicted / seconds - 1 if predicted and seconds else None
        passed = ran.status == "ok"
        where = (report.layer_group, report.layers)
        rows.append(Row(ran.format, *where, passed, predicted, seconds, off, equal, note))
    return tuple(rows)


def predicted_seconds(report: Any, text: str, spec: ModelSpec, device: DeviceSpec) -> float | None:
    """The time model's answer for exactly what a validation ran: one layer of its group in one format."""
    latent = "k" not in roles(spec)
    fields = {"latent": text} if latent else dict(zip("kv", formats_of(text), strict=True))
    r = report.request
    resolved = resolve(PlanRequest(model=spec.id, context=r.context, batch=r.batch, **fields), spec)  # type: ignore[arg-type]
    seconds = attention_seconds(resolved, device, report.layer_group)
    return None if seconds is None else seconds / int(report.layers)


def _words(c: Candidate) -> str:
    """A format as `kvplan validate` takes it; the engine's packing changes no value and has no kernel of its own."""
    from kvplan.recommend.evidence import bare

    if c.latent:
        return c.latent
    k, v = (bare(f) if f else "" for f in (c.k, c.v))
    return k if k == v else f"{k} / {v}"


def _request(
    spec: ModelSpec, group: str, chosen: Candidate, words: list[str], result: Recommendation, every: bool, device: str
) -> tuple[Any, str]:
    """What validates one layer group, and why the runner-up is not in it: it may have no kernel, the chosen must."""
    from kvplan.validate.device import free_bytes
    from kvplan.validate.memory import fit
    from kvplan.validate.request import make_request

    cpu, without = device == "cpu", ""
    for tried in (words, words[:1]):
        formats = [*tried, "all"] if every else tried
        try:
            request = make_request(
                spec,
                context=None if cpu else result.request.context,
                batch=None if cpu else -(-result.request.concurrency // chosen.layout.dp),
                formats=() if chosen.latent else formats,
                latents=formats if chosen.latent else (),
                device=device,
                page_size=None,
                seed=1,
                layer_group=group,
            )
        except (UnsupportedError, UsageError) as error:
            if tried == words[:1]:
                raise
            without = error.message
            continue
        free = free_bytes(request.device)
        # Larger than this GPU: both become smaller together, and the report says so.
        return request if free is None else fit(request, spec, free, frozenset()), without
    raise AssertionError("the last try raises or returns")


def _row_of(text: str, ran: tuple[Row, ...]) -> Row | None:
    named = next((r for r in ran if r.format == text), None)
    return named or next((r for r in ran if formats_of(r.format) == formats_of(text)), None)


def _not_run(text: str, group: str, layers: int, why: str) -> Row:
    return Row(text, group, layers, False, None, None, None, None, f": not run: {why}")


def _verdict(chosen: list[list[Row]], report: Any, result: Recommendation) -> tuple[str, str]:
    """By the rows of the recommended, then of the runner-up: one in each layer group."""
    first, second = chosen[0], chosen[1] if len(chosen) > 1 else []
    name = first[0].format
    if not all(r.passed for r in first):
        may = second and all(r.passed for r in second) and result.runner_up
        if may and not may.candidate.obstacles:
            return "changed", f"{name} is red on this machine: take {second[0].format}"
        return "not decided", f"{name} is red on this machine, and no other choice keeps every bound"
    slo, step = result.request.slo_itl_ms, _step_seconds(first, report, result)
    if slo is not None and step is not None and step > slo / 1e3:
        text = f"measured attention makes a step at least {step * 1e3:.2f} ms, above the bound {slo:g} ms"
        return "changed", text
    worst = max((r.off for r in first if r.off is not None), key=abs, default=0.0)
    if abs(worst) > CLOSE:
        return "not decided", f"the predicted time is {worst:+.0%} off, more than {CLOSE:.0%}: trust the measured one"
    timed = "its kernel is green" + (" and as fast as predicted" if any(r.off is not None for r in first) else "")
    return "confirmed", f"{name}: {timed}; it was chosen by loss and room, which this machine does not change"


def _step_seconds(rows: list[Row], report: Any, result: Recommendation) -> float | None:
    """The floor of a step with attention as measured; None where what ran is not what the step reads."""
    assert result.recommended is not None
    c, ran = result.recommended.candidate, report.request
    same = (ran.context, ran.batch) == (result.request.context, result.request.concurrency)
    times = [r.measured_seconds for r in rows]
    if not same or result.request.gpus > 1 or c.layers or not c.attention.seconds or None in times:
        return None
    measured = sum(r.layers * (r.measured_seconds or 0.0) for r in rows)
    return c.step.floor_seconds - c.attention.seconds + measured
