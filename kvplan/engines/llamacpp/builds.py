"""The builds of llama.cpp whose rules are known, and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.engines.shared.types import Case

NEWEST, OLD = "b11434", "b5937"
CELLS = 256


@dataclass(frozen=True)
class Build:
    """Rules of one build.

    Attributes:
        plain_cells: without flash attention, cells come in multiples of this.
        auto_flash: whether flash attention is on unless it is switched off.
        latent_copy: whether latents are stored a second time, without their rope part, as V.
        special: whether states, index keys and compressed rows are covered.
    """

    plain_cells: int = CELLS
    auto_flash: bool = True
    latent_copy: bool = False
    special: bool = True


BUILDS = {NEWEST: Build(), OLD: Build(plain_cells=32, auto_flash=False, latent_copy=True, special=False)}


def build_of(case: Case) -> Build:
    """The rules of the case's version."""
    return BUILDS[case.version]
