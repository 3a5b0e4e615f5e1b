"""Base of results that are stored as JSON while they grow. Data only; no torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class StoredReport(BaseModel):
    """A frozen result, one file; docstrings describe the fields of its JSON schema, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    def to_json(self) -> str:
        return self.model_dump_json(indent=1, by_alias=True)

    def save(self, path: Path) -> None:
        """Write atomically, so that an interruption leaves the last complete state."""
        partial = path.with_suffix(path.suffix + ".partial")
        partial.write_text(self.to_json() + "\n", encoding="utf-8")
        partial.replace(path)
