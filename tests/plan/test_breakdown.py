"""Trees: numbers follow from factors, and a tree that says otherwise is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.breakdown import BASES, Factor, Node, Product, Sum, from_dict, leaves, to_dict
from kvplan.errors import InputError

factors = st.lists(
    st.builds(Factor, st.text(max_size=5), st.integers(0, 2**40), st.text(max_size=5)), min_size=1, max_size=4
)
products = st.builds(Product, st.text(max_size=5), factors.map(tuple), st.sampled_from(BASES), st.text(max_size=5))
trees = st.recursive(
    products, lambda t: st.builds(Sum, st.text(max_size=5), st.lists(t, max_size=3).map(tuple)), max_leaves=8
)


@given(trees)
def test_round_trip_through_json(tree: Node) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(tree)))) == tree
    assert tree.nbytes == sum(leaf.nbytes for leaf in leaves(tree))


def test_formula() -> None:
    term = Product(
        "rows", (Factor("layers", 32), Factor("sequences", 1), Factor("tokens", 32768), Factor("bytes", 512))
    )
    assert term.formula == "32 layers x 32,768 tokens x 512 bytes"
    assert Product("one", (Factor("layers", 1), Factor("bytes", 1))).formula == "1 bytes"


def stored() -> dict[str, Any]:
    term = Product("rows", (Factor("layers", 2), Factor("bytes", 3)))
    return to_dict(Sum("all", (term, Sum("none"))))


def breakages() -> dict[str, Any]:
    return {
        "leaf": lambda d: d["children"][0].update(nbytes=7),
        "sum": lambda d: d.update(nbytes=7),
        "factor": lambda d: d["children"][0]["factors"][0].update(value=3),
        "formula": lambda d: d["children"][0].update(formula="3 layers x 3 bytes"),
        "float": lambda d: d.update(nbytes=6.0),
        "negative": lambda d: d["children"][0]["factors"][0].update(value=-2),
        "boolean": lambda d: d["children"][0]["factors"][0].update(value=True),
        "text": lambda d: d["children"][0]["factors"][0].update(value="2"),
        "no factors": lambda d: d["children"][0].update(factors=[]),
        "basis": lambda d: d["children"][0].update(basis="guess"),
        "missing": lambda d: d["children"][0].pop("source"),
        "children": lambda d: d.update(children=3),
    }


@pytest.mark.parametrize("how", breakages())
def test_a_changed_number_is_refused(how: str) -> None:
    data = stored()
    assert from_dict(data).nbytes == 6
    breakages()[how](data)
    with pytest.raises(InputError):
        from_dict(data)


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, {"children": [None]}])
def test_junk_is_refused(junk: Any) -> None:
    with pytest.raises(InputError):
        from_dict(junk)


def test_a_factor_without_a_source_is_read() -> None:
    """Plans stored before factors had sources."""
    data = stored()
    for factor in data["children"][0]["factors"]:
        del factor["source"]
    assert from_dict(data).nbytes == 6
