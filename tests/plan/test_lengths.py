"""Lengths of requests: quantiles are hit, traces are read, and what cannot be read is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvplan.errors import InputError, UsageError
from kvplan.plan.lengths import POINTS, read_lengths


def test_a_log_normal_curve_goes_through_its_quantiles() -> None:
    found = read_lengths("p50=2k,p95=16k")
    assert found.text == "p50=2048,p95=16384" and len(found.sample) == POINTS
    assert found.sample == tuple(sorted(found.sample))
    # Between two sample points lies the quantile itself.
    assert found.sample[249] <= 2048 <= found.sample[250]
    assert found.sample[474] <= 16384 <= found.sample[475]
    # Mean of a log-normal: exp(mu + sigma^2 / 2), sigma = ln(8) / 1.6449; the 500 points miss some of the far tail.
    sigma = math.log(8) / 1.6448536269514722
    assert found.mean == pytest.approx(2048 * math.exp(sigma**2 / 2), rel=0.02)


def test_bounds_and_a_single_quantile() -> None:
    bounded = read_lengths("p0=1k,p50=2k,p95=16k,p100=20k")
    assert bounded.sample[0] == 1024 and bounded.sample[-1] == 20 * 1024
    assert set(read_lengths("p90=4k").sample) == {4096}


@pytest.mark.parametrize(
    ("text", "says"),
    [("p50=2k,p95=1k", "fall"), ("50=2k", "is no quantile"), ("p50=many", "p50"), ("p50=2k,mean=3k", "mean=3k"),
     ("p100=4k", "between p0 and p100"), ("p101=4k", "is no quantile")],
)  # fmt: skip
def test_quantiles_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_lengths(text)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "tokens\n300\n100\n200\n"),
        ("b.csv", "id,ContextTokens,GeneratedTokens\n1,250,50\n2,50,50\n3,150,50\n"),
        ("c.jsonl", "\n".join(json.dumps({"prompt_tokens": n - 9, "completion_tokens": 9}) for n in (300, 100, 200))),
        ("d.jsonl", "300\n100\n200\n"),
        ("e.csv", "\ufefflength,user\n300,x\n100,y\n200,z\n"),
    ],
)
def test_traces(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    found = read_lengths(str(file))
    assert (found.sample, found.text, found.mean) == ((100, 200, 300), name, 200)
    assert "3 requests" in found.how


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "holds no request"), ("words\nfoo\n", "request 1 has no length"), ("tokens\n12\n-3\n", "request 2"),
     ("tokens\nx\n", "is no length"), ("{broken\n", "neither JSONL nor CSV"), ("tokens\n1.5\n", "no whole number"),
     ('{"tokens": true}\n', "has no length"), ("tokens\n0\n", "impossible")],
)  # fmt: skip
def test_traces_that_cannot_be_read(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_lengths(str(file))
    assert says in caught.value.message and str(tmp_path) not in caught.value.message


def test_a_missing_trace_is_an_error() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_lengths("no-such-trace.csv")
