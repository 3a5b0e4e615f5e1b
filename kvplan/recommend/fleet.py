"""The same question for several GPU types: requests per GPU, and per price where the user gives prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvplan.recommend.types import Fleet, FleetRow, Recommendation

NO_PRICE = "Prices are the user's own (--price G=X); kvplan knows none."


def rank(found: Sequence[Recommendation], prices: Mapping[str, float]) -> Fleet:
    """Rows in order: GPUs on which every bound is kept first, then most requests per GPU, or per price.

    Args:
        found: one recommendation per GPU, of the same request otherwise.
        prices: GPU to price per hour of one; those without are ranked only where none has one.
    """
    rows = [_row(r, prices.get(r.request.gpu)) for r in found]
    priced = bool(prices) and all(row.price_per_hour is not None for row in rows)
    rows.sort(key=lambda row: (row.recommendation.recommended is None, -_merit(row, priced)))
    notes = [NO_PRICE]
    if prices and not priced:
        notes.append("Not every GPU has a price, so the order goes by requests per GPU.")
    return Fleet(rows=tuple(rows), ranked_by="requests per price" if priced else "requests per GPU", notes=tuple(notes))


def _merit(row: FleetRow, priced: bool) -> float:
    return row.requests_per_price or 0.0 if priced else row.requests_per_gpu


def _row(r: Recommendation, price: float | None) -> FleetRow:
    choice = r.recommended or r.runner_up
    requests = choice.candidate.capacity.requests if choice else 0
    each = requests / r.request.gpus
    return FleetRow(
        gpu=r.request.gpu,
        requests=requests,
        requests_per_gpu=each,
        price_per_hour=price,
        requests_per_price=None if price is None else each / price,
        recommendation=r,
    )
