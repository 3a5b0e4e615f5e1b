"""The proofs of a latent can fail: each is shown a kernel with the fault it looks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kvplan_kernels.bench import baseline
from kvplan_kernels.bench.timing import Timing
from kvplan_kernels.testing import DEVICE

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.specs.load import load_model
from kvplan.validate import filled as filling
from kvplan.validate import measure, proofs
from kvplan.validate.filled import Filled, fill
from kvplan.validate.kinds import latent
from kvplan.validate.kinds.latent import LATENT
from kvplan.validate.phases import append, decode
from kvplan.validate.report import Baselines, Check, Roof
from kvplan.validate.request import make_request
from kvplan.validate.session import DTYPES, Session
from kvplan.validate.subject import choose_group, geometry
from kvplan.validate.tensors import SINK_MASS, Geometry

SPEC = load_model("deepseek-v2-lite")
# A small row of the same kind: two groups of codes, 16 rope values.
RECORD = "fp8_e4m3:group/32,scale=fp32,pack=slot,rope=bf16"
GEOMETRY = Geometry(2, 36, 4, 1, 80, 64, head_dim=48, shared=True)


def small(fmt: str = RECORD) -> proofs.Small:
    layout = bind([Tensor("latent", parse_any(fmt), 80, 16)], 1, "bf16")
    return proofs.small_case(layout, GEOMETRY, page_size=16, dtype=torch.bfloat16, device=DEVICE, seed=3)


def red(case: proofs.Small) -> set[str]:
    return {c.name for c in proofs.prove(case) if not c.passed}


@pytest.mark.parametrize(("fmt", "count"), [(RECORD, 5), ("bf16", 4)])
def test_sound_kernels_pass(fmt: str, count: int) -> None:
    found = proofs.prove(small(fmt))
    assert all(c.passed for c in found) and len(found) == count, found


def test_a_kernel_that_ignores_scales_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), latent.latent_decode

    def ignores(q: Any, cache: Any, **how: Any) -> Any:
        frozen = cache.clone()
        if not torch.equal(frozen.field("latent", "codes"), case.cache.field("latent", "codes")):
            return real(q, cache, **how)
        frozen.field("latent", "scale").copy_(case.cache.field("latent", "scale"))
        return real(q, frozen, **how)

    monkeypatch.setattr(latent, "latent_decode", ignores)
    assert red(case) == {"doubled latent scales obeyed"}


def test_a_kernel_that_reads_another_copy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), latent.latent_decode

    def secret(q: Any, cache: Any, **how: Any) -> Any:
        own = torch.equal(cache.lengths, case.cache.lengths)
        return real(q, case.cache if own else cache, **how)

    monkeypatch.setattr(latent, "latent_decode", secret)
    assert red(case) == {"doubled latent scales obeyed", "one flipped latent code obeyed"}


def test_a_kernel_with_another_softmax_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = small(), latent.latent_decode

    def sharper(q: Any, cache: Any, *, sm_scale: float, **how: Any) -> Any:
        return real(q, cache, sm_scale=1.1 * sm_scale, **how)

    monkeypatch.setattr(latent, "latent_decode", sharper)
    assert "kernel on a small shuffled cache" in red(case)


def test_one_wrong_byte_is_caught() -> None:
    case = small()
    next(iter(case.cache.planes.values())).view(-1)[77] ^= 1
    assert "codes bit-exact" in red(case)


@pytest.fixture(scope="module")
def case() -> tuple[Session, Filled]:
    """A cache of a real model without its proofs, which are tested above."""
    asked = make_request(
        SPEC, context=20, batch=1, latents=("fp8_ds_mla",), device="cpu", page_size=16, seed=1, phases=("decode",)
    )
    group = choose_group(SPEC)
    shape = geometry(group, asked.context, asked.batch)
    tensors = LATENT.make_tensors(shape, seed=1, dtype=DTYPES[asked.dtype], device="cpu")
    session = Session(asked, SPEC, group, shape, tensors, lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "prove", lambda _small: ())
        return session, fill(session, "fp8_ds_mla")


def test_an_append_that_depends_on_its_pieces_is_caught(
    case: tuple[Session, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert append.run(*case).status == "ok"
    sound = latent.append_latent

    def forgets(cache: Any, rows: Any, **how: Any) -> None:
        sound(cache, torch.zeros_like(rows) if rows.shape[1] == 1 else rows, **how)

    monkeypatch.setattr(latent, "append_latent", forgets)
    assert append.run(*case).status == "failed"


def test_times_become_sentences(case: tuple[Session, Filled], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that a GPU would time runs once here, torch's on the dense rows among them."""
    session, filled = case
    count = iter(range(1, 100))

    def timing(calls: Any, launches: int = 24, replays: int = 7) -> Timing:
        for call in calls:
            call()
        return Timing(next(count) * 1e-6, (1e-6,), len(calls))

    for module in (measure, append, baseline):
        monkeypatch.setattr(module, "graph_time", timing)
    monkeypatch.setattr(decode, "rotating", lambda cache: [cache])
    monkeypatch.setattr(baseline, "copies_needed", lambda nbytes: 1)
    monkeypatch.setattr(measure, "fusion_check", lambda *_: Check(name="fusion is real", passed=True, detail=""))
    monkeypatch.setattr(Session, "timed", property(lambda _: True))
    ways = LATENT.torch_ways(session.tensors.q, session.sm_scale)
    assert baseline.dense_time(ways, *LATENT.dense(session.tensors)).seconds == 1e-6
    session.roof = Roof(bytes_per_second=1e12, method="")
    session.baselines = Baselines(torch_sdpa_seconds=9e-6, best_seconds=4e-6, best="kvplan's 16-bit kernel")
    result = decode.run(session, filled)
    names = {"kernel at the validated shape", "unfused computes the same", "fusion is real"}
    assert {c.name for c in result.checks if c.passed} == names
    assert result.verdict.startswith("attention latency: 2.00x the speed of the best 16-bit path")
    times = decode.roof_times(session, filled, result)
    assert times is not None and times.bytes_read == 20 * 656 and times.fusion_gain == pytest.approx(3 / 2)
    assert append.run(session, filled).verdict.endswith("one layer, the latent")


def test_latents_are_seedable_and_structured() -> None:
    g = Geometry(1, 1024, 8, 1, 576, 512, head_dim=192, shared=True)
    a, b, c = (LATENT.make_tensors(g, seed=s, dtype=torch.bfloat16, device="cpu") for s in (1, 1, 2))
    assert torch.equal(a.k, b.k) and torch.equal(a.q, b.q) and not torch.equal(a.k, c.k)
    assert a.v.data_ptr() == a.k.data_ptr() and a.v.shape == (1, 1024, 1, 512)
    rows = a.k[0, :, 0].double()
    # RMSNorm: rows of one size, in the first channels.
    size = rows[4:, :512].square().mean(-1).sqrt()
    assert size.mean() == pytest.approx(1, abs=0.2) and float(size.std()) < 0.1
    logits = a.q[0].double() @ rows.T * g.sm_scale
    p = torch.softmax(logits, -1)
    assert p[:, :4].sum(-1).mean() == pytest.approx(SINK_MASS, abs=0.05)
    assert 0.5 < float(logits[:, 4:].std()) < 4 and float(p[0, 4:].max()) > 0.05
