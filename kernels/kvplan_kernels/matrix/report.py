"""What a run of the matrix says: counts per trap and phase, refusals, failures. Reports of shards add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from kvplan_kernels.matrix.cases import Case
from kvplan_kernels.matrix.run import PHASES, Outcome
from kvplan_kernels.matrix.traps import TRAPS, missing, traps_of

SCHEMA = "kvplan.matrix/1"


@dataclass
class Report:
    """Counts of a run.

    Attributes:
        traps: cases that stepped into each trap and whose phase ran.
        phases: phase to counts of `ok`, `failed` and `refused`.
        infeasible: combinations that do not exist, by the refusal's words.
        refused: phases that a door refused, by its words.
        not_run: cases for which there was no time left.
        ties: values exactly between two codes.
        largest_error: relative error of the worst decode that passed.
        failures: case, phases, lines of each case that failed.
        passed_cases: digests of the others, for `--resume`.
    """

    device: dict[str, str]
    seed: int
    cases: int = 0
    seconds: float = 0.0
    not_run: int = 0
    ties: int = 0
    largest_error: float = 0.0
    traps: Counter[str] = field(default_factory=Counter)
    phases: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in PHASES})
    infeasible: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    passed_cases: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self._count(outcome.case, outcome.phases, 1)
        self.ties += outcome.ties
        if outcome.failures:
            case = asdict(outcome.case)
            self.failures.append({"case": case, "phases": outcome.phases, "failures": outcome.failures})
        else:
            self.passed_cases.append(outcome.case.digest)
            self.largest_error = max(self.largest_error, outcome.error)

    def _count(self, case: Case, phases: dict[str, str], weight: int) -> None:
        self.cases += weight
        for phase, said in phases.items():
            status, _, words = said.partition(": ")
            self.phases[phase][status] += weight
            if words:
                self.refused[f"{phase}: {words}"] += weight
        ran = {phase for phase, said in phases.items() if not said.startswith("refused")}
        for name in traps_of(case):
            self.traps[name] += weight * (TRAPS[name].phase in ran)

    def forget_failures(self) -> None:
        """Take failed cases out of the counts: they are run again."""
        for failed in self.failures:
            self._count(Case.from_json(failed["case"]), failed["phases"], -1)
        self.failures, self.not_run = [], 0

    def merge(self, other: Report) -> None:
        assert (self.device, self.seed) == (other.device, other.seed), "shards of different runs"
        for name in ("cases", "seconds", "not_run", "ties"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_error = max(self.largest_error, other.largest_error)
        self.failures += other.failures
        self.passed_cases += other.passed_cases
        # Every shard names all combinations that do not exist.
        self.infeasible |= other.infeasible
        for name in ("traps", "refused"):
            getattr(self, name).update(getattr(other, name))
        for phase, counts in other.phases.items():
            self.phases[phase].update(counts)

    @property
    def missing(self) -> list[str]:
        """Traps without an executed case; of those that need a GPU only when there is one."""
        return missing(+self.traps, gpu=self.device["name"] != "interpreter")

    @property
    def passed(self) -> bool:
        return not (self.failures or self.missing or self.not_run)

    def as_json(self) -> dict[str, Any]:
        ordered = {name: self.traps[name] for name in TRAPS}
        return {"schema": SCHEMA, "passed": self.passed, **vars(self), "traps": ordered, "missing": self.missing}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Report:
        assert stored["schema"] == SCHEMA, stored["schema"]
        plain = {k: v for k, v in stored.items() if k not in ("schema", "passed", "missing")}
        for name in ("traps", "infeasible", "refused"):
            plain[name] = Counter(plain[name])
        return cls(**{**plain, "phases": {name: Counter(n) for name, n in plain["phases"].items()}})

    def lines(self) -> Iterable[str]:
        """The table that is printed."""
        width = max(map(len, TRAPS))
        for name in TRAPS:
            yield f"{name:<{width}}  {self.traps[name]:>6}"
        for phase, counts in self.phases.items():
            yield f"{phase}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        yield f"{self.cases} cases in {self.seconds:.0f} s, {self.not_run} not run, {self.ties} ties"
        yield f"{self.infeasible.total()} combinations do not exist; largest relative error {self.largest_error:.1e}"
        for failed in self.failures[:50]:
            yield f"FAILED {failed['case']}"
            yield from (f"    {failure}" for failure in failed["failures"])
        for name in self.missing:
            yield f"MISSING no case for: {name}"
