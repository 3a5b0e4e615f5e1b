"""`kvplan recommend --verify`: the recommended and the runner-up run on this machine, and the verdict held to it.

The measurement is one function from (request, spec, source) to a validation report, so that a test can put another in
its place; everything else here compares.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kvplan.cli.evidence_files import formats_of
from kvplan.errors import ExitCode, UnsupportedError, UsageError
from kvplan.memory.groups import roles
from kvplan.plan import PlanRequest, resolve
from kvplan.recommend.timemodel import attention_seconds
from kvplan.recommend.types import Candidate, Recommendation
from kvplan.report.verification import Row, Verified
from kvplan.specs.load import load_device, load_model

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

CLOSE = 0.25
"""A prediction this near the measured time counts as met."""


Measure = Callable[[Any, Any, str], Any]


def measure(request: Any, spec: Any, source: str) -> Any:
    """The real thing: `kvplan validate` of these formats, to its last report."""
    from kvplan.cli.progress import Bar
    from kvplan.validate.launch import start

    report = None
    with Bar(len(request.formats)) as bar:
        for found in start(request, spec, source, shlex.join(["kvplan", *sys.argv[1:]]), bar.say):
            report = found
            bar.advance()
    return report


def verify(result: Recommendation, as_json: bool, show: Callable[[], None], device: str = "cuda") -> int:
    """Measure, compare, print; exit code 6 if the verdict changed or a check is red.

    Raises:
        NoDeviceError: there is no GPU here.
        UnsupportedError: nothing is recommended, or neither choice has kernels.
    """
    from kvplan.validate import device as machine

    machine.require(device)
    found = verified(result, measure, device)
    if as_json:
        parts = {"recommendation": json.loads(result.to_json()), "verification": asdict(found)}
        click.echo(json.dumps({"schema": "kvplan.verification/1", **parts}, indent=1))
    else:
        show()
        for line in lines(found):
            click.echo(line)
    return ExitCode.OK if found.verdict == "confirmed" else ExitCode.CHECK_FAILED


def verified(result: Recommendation, how: Measure, device: str = "cuda") -> Verified:
    """Run both through `how` and compare.

    Raises:
        UnsupportedError: nothing is recommended, or kvplan has no kernel for what is.
    """
    if result.recommended is None:
        raise UnsupportedError("nothing is recommended, so there is nothing to verify", "relax a bound first")
    spec = load_model(result.request.model)
    chosen = [c.candidate for c in (result.recommended, result.runner_up) if c]
    words = list(dict.fromkeys(_words(c) for c in chosen))
    without = ""
    try:
        request = _request(spec, chosen, words, result, device)
    except (UnsupportedError, UsageError) as error:
        if len(words) == 1:
            raise
        # The runner-up may have no kernel; the recommended one must.
        without = error.message
        request = _request(spec, chosen, words[:1], result, device)
    report = how(request, spec, result.request.model)
    rows = tuple(_row(report, text, spec, load_device(result.request.gpu), without) for text in words)
    verdict, reason = _verdict(rows, result)
    return Verified(
        verdict=verdict,
        reason=reason,
        device=report.device.name,
        context=report.request.context,
        batch=report.request.batch,
        rows=rows,
        same_order=_same_order(rows),
    )


def lines(found: Verified) -> list[str]:
    """The comparison for readers."""
    made = ["", f"Verified on {found.device}, {found.batch} x {found.context:,} tokens, one layer: {found.verdict}"]
    for row in found.rows:
        predicted = "-" if row.predicted_seconds is None else f"{row.predicted_seconds * 1e6:.1f} us predicted"
        measured = "-" if row.measured_seconds is None else f"{row.measured_seconds * 1e6:.1f} us measured"
        off = "" if row.off is None else f" ({row.off:+.0%})"
        made.append(f" - {row.format}: {'green' if row.passed else 'RED'}, {predicted}, {measured}{off}{row.note}")
    if found.same_order is not None:
        made.append(f" - order by speed {'as predicted' if found.same_order else 'NOT as predicted'}")
    return [*made, f" - {found.reason}"]


def _words(c: Candidate) -> str:
    """A format as `kvplan validate` takes it; the engine's packing changes no value and has no kernel of its own."""
    from kvplan.recommend.evidence import bare

    if c.latent:
        return c.latent
    k, v = (bare(f) if f else "" for f in (c.k, c.v))
    return k if k == v else f"{k} / {v}"


def _request(spec: Any, chosen: list[Candidate], words: list[str], result: Recommendation, device: str) -> Any:
    from kvplan.validate.device import free_bytes
    from kvplan.validate.memory import fit
    from kvplan.validate.request import make_request

    latent = any(c.latent for c in chosen)
    cpu = device == "cpu"
    request = make_request(
        spec,
        context=None if cpu else result.request.context,
        batch=None if cpu else -(-result.request.concurrency // chosen[0].layout.dp),
        formats=() if latent else words,
        latents=words if latent else (),
        device=device,
        page_size=None,
        seed=1,
    )
    free = free_bytes(request.device)
    # Larger than this GPU: both become smaller together, and the report says so.
    return request if free is None else fit(request, spec, free, frozenset())


def _row(report: Any, text: str, spec: ModelSpec, device: DeviceSpec, without: str) -> Row:
    names = {r.format: r for r in report.results}
    ran = names.get(text) or next((r for r in report.results if formats_of(r.format) == formats_of(text)), None)
    if ran is None:
        return Row(text, False, None, None, None, f": not run: {without or 'the device was lost'}")
    note = f": {ran.error}" if ran.error else ""
    red = [c.name for c in ran.checks if not c.passed]
    note += f": red {', '.join(red)}" if red else ""
    equal = None if ran.cache_bytes is None else ran.cache_bytes == ran.planned_bytes
    seconds = ran.times.fused_seconds if ran.times else None
    return Row(text, ran.status == "ok", predicted_seconds(report, text, spec, device), seconds, equal, note)


def predicted_seconds(report: Any, text: str, spec: ModelSpec, device: DeviceSpec) -> float | None:
    """The time model's answer for exactly what a validation ran: one layer of its group in one format."""
    latent = "k" not in roles(spec)
    fields = {"latent": text} if latent else dict(zip("kv", formats_of(text), strict=True))
    r = report.request
    resolved = resolve(PlanRequest(model=spec.id, context=r.context, batch=r.batch, **fields), spec)  # type: ignore[arg-type]
    groups = tuple(g for g in resolved.groups if g.name == report.layer_group)
    seconds = attention_seconds(groups, r.context, r.batch, device) if groups else None
    return None if seconds is None else seconds / sum(g.layers for g in groups)


def _verdict(rows: tuple[Row, ...], result: Recommendation) -> tuple[str, str]:
    first, second = rows[0], rows[1] if len(rows) > 1 else None
    if not first.passed:
        if second is not None and second.passed and result.runner_up and not result.runner_up.candidate.obstacles:
            return "changed", f"{first.format} is red on this machine: take {second.format}"
        return "not decided", f"{first.format} is red on this machine, and no other choice keeps every bound"
    slo = result.request.slo_itl_ms
    if slo is not None and first.measured_seconds is not None and result.recommended:
        layers = _layers(result)
        floor = result.recommended.candidate.step.floor_seconds
        predicted = result.recommended.candidate.attention.seconds or 0.0
        step = floor - predicted + layers * first.measured_seconds
        if predicted and step > slo / 1e3:
            return (
                "changed",
                f"measured attention makes a step at least {step * 1e3:.2f} ms, above the bound {slo:g} ms",
            )
    if first.off is not None and abs(first.off) > CLOSE:
        return (
            "not decided",
            f"the predicted time is {first.off:+.0%} off, more than {CLOSE:.0%}: trust the measured one",
        )
    timed = "its kernel is green" + ("" if first.measured_seconds is None else " and as fast as predicted")
    return "confirmed", f"{first.format}: {timed}; it was chosen by loss and room, which this machine does not change"


def _layers(result: Recommendation) -> int:
    spec = load_model(result.request.model)
    return sum(len(spec.positions(g)) for g in spec.layer_groups if g.kind == "attention")


def _same_order(rows: tuple[Row, ...]) -> bool | None:
    known = [r for r in rows if r.predicted_seconds is not None and r.measured_seconds is not None]
    if len(known) < 2:
        return None
    by = [
        sorted(known, key=lambda r: (getattr(r, name), r.format)) for name in ("predicted_seconds", "measured_seconds")
    ]
    return by[0] == by[1]
