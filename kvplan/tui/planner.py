"""Plans made beside the drawing: the last request wins, and older ones are dropped between two steps."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kvplan.errors import KvplanError
from kvplan.plan import Plan, PlanRequest, make_plan, resolve
from kvplan.recommend.offers import FormatRow, compare_formats
from kvplan.report.bytemap import map_lines
from kvplan.specs.device import DeviceSpec
from kvplan.specs.load import load_device, load_model
from kvplan.specs.model import ModelSpec
from kvplan.tui.choices import Choices

KEPT = 64
"""Requests whose plans are kept, so that going back is at once."""

QUICK = 0.035
"""Seconds of a plan that can be made at once, without a thread."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan and the request as it was asked, without the defaults that the plan's echo has."""

    request: PlanRequest
    plan: Plan


class Planner:
    """Reads specs once and keeps the last plans."""

    def __init__(self) -> None:
        self._specs: dict[str, ModelSpec] = {}
        self._devices: dict[str, DeviceSpec] = {}
        self._seconds: dict[tuple[str, str], float] = {}
        self._plans: OrderedDict[PlanRequest, Plan] = OrderedDict()

    def plan(self, choices: Choices) -> Made | KvplanError:
        """The plan of the form, or what is wrong with the form."""
        try:
            began = time.perf_counter()
            request = choices.request()
            made = Made(request, self._made(request))
            self._seconds[choices.model, choices.engine] = time.perf_counter() - began
            return made
        except KvplanError as error:
            return error

    def is_quick(self, choices: Choices) -> bool:
        """Whether the last plan of this model and engine took less time than a thread and a second drawing cost."""
        return self._seconds.get((choices.model, choices.engine), QUICK) < QUICK

    def ladder(self, choices: Choices) -> Plan | None:
        """The same request at all lengths; None where it cannot be planned."""
        try:
            return self._made(choices.request().model_copy(update={"context": None}))
        except KvplanError:
            return None

    def formats(self, choices: Choices, wanted: Callable[[], bool]) -> list[FormatRow]:
        """Every format for the form's request, as far as it is still wanted."""
        rows: list[FormatRow] = []
        try:
            request = choices.request()
            for row in compare_formats(request, self._spec(request), self._device(request)):
                if not wanted():
                    break
                rows.append(row)
        except KvplanError:
            return []
        return rows

    def byte_map(self, choices: Choices) -> list[str]:
        """Where each byte lies in the formats of the form, by group of layers; what is wrong where they have none."""
        try:
            request = choices.request()
            found = resolve(request, self._spec(request), self._device(request))
        except KvplanError as error:
            return [error.message]
        lines = []
        for group in found.groups:
            if group.role in ("kv", "latent", "index"):
                formats = ", ".join(dict.fromkeys(t.spelling for t in group.layout.tensors))
                size = found.page_size or group.layout.page_multiple
                lines += [f"{group.name}: {formats}", *(f"  {line}" for line in map_lines(group.layout, size))]
        return lines or ["this model has no rows that a format could store"]

    def _made(self, request: PlanRequest) -> Plan:
        known = self._plans.get(request)
        if known is None:
            known = self._plans[request] = make_plan(request, self._spec(request), self._device(request))
            while len(self._plans) > KEPT:
                self._plans.popitem(last=False)
        return known

    def _spec(self, request: PlanRequest) -> ModelSpec:
        if request.model not in self._specs:
            self._specs[request.model] = load_model(request.model)
        return self._specs[request.model]

    def _device(self, request: PlanRequest) -> DeviceSpec | None:
        if request.gpu is None:
            return None
        if request.gpu not in self._devices:
            self._devices[request.gpu] = load_device(request.gpu)
        return self._devices[request.gpu]
