"""The plan: request in, one result object out. The only composer of formulas, specs and capacity."""

from kvplan.plan.compose import compose, figures_at, ladder_lengths, make_plan
from kvplan.plan.legal import legal_dcps, legal_tps
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.result import Plan
from kvplan.plan.types import PlanRequest

__all__ = [
    "Plan",
    "PlanRequest",
    "Resolved",
    "compose",
    "figures_at",
    "ladder_lengths",
    "legal_dcps",
    "legal_tps",
    "make_plan",
    "resolve",
]
