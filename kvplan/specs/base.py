"""What every spec object shares: strict types, frozen, unknown keys refused with the known ones named."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Strict,
    model_validator,
)
from pydantic_core import PydanticCustomError

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
HF_PATTERN = r"^[^/\s]+/[^/\s]+$"
CAPABILITY_PATTERN = r"^\d{1,2}\.\d$"

FloatDtype = Literal["float32", "bfloat16", "float16"]
"""A 32- or 16-bit number type, as torch names it."""

Layers = Annotated[int, Field(ge=1, le=10_000)]
"""A number of layers."""
Index = Annotated[int, Field(ge=0, lt=10_000)]
"""A zero-based layer index."""
Heads = Annotated[int, Field(ge=1, le=65_536)]
"""A number of heads."""
Dim = Annotated[int, Field(ge=1, le=1_048_576)]
"""A number of elements along one axis."""
Tokens = Annotated[int, Field(ge=1, le=2**30)]
"""A number of tokens or rows."""
Count = Annotated[int, Field(ge=1, le=10**18)]
"""Bytes, parameters or bytes per second: one positive integer."""
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
"""A lower-case identifier: letters, digits, dot, dash, underscore."""
Text = Annotated[str, Field(min_length=1, max_length=2000)]
"""Free text, not empty."""

# YAML and Python callers give lists; the stored value is a tuple. Only the container is lenient, its items stay strict.
LENIENT = Strict(False)
Texts = Annotated[tuple[Text, ...], LENIENT]


class Spec(BaseModel):
    """Base of every spec object."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # pydantic's own use_attribute_docstrings reads every class's source at import: a fifth of a plan's time.
        from kvplan.texts import field_text

        schema = handler(core_schema)
        for name, part in handler.resolve_ref_schema(schema).get("properties", {}).items():
            part["description"] = field_text(cls, name)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        # pydantic's own error does not say which keys exist; the loader's hint needs them.
        if isinstance(value, dict):
            for key in value:
                if key not in cls.model_fields:
                    raise problem("unknown_key", "unknown key", at=(key,), known=tuple(cls.model_fields))
        return value


def _read_version(value: Any) -> Any:
    # Literal[1] alone would take true and 1.0.
    if type(value) is not int or value != 1:
        raise problem("version", f"expected 1, the schema version that this kvplan reads, got {str(value)[:40]}")
    return value


def problem(kind: str, text: str, *, at: tuple[Any, ...] = (), **context: Any) -> PydanticCustomError:
    """An error whose place is `at` (keys and indices) below the object being validated."""
    # Braces in a message template would be taken for fields.
    return PydanticCustomError(kind, "{text}", {"text": text, "at": at, **context})


def by_shape(expected: str, word: str | None = None) -> Discriminator:
    """Choose between spellings of one key by what is found: a number, a list, a mapping, or exactly this `word`."""

    def shape(value: Any) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool):
            return "number"
        if isinstance(value, list | tuple):
            return "list"
        if isinstance(value, dict | BaseModel):
            return "mapping"
        return "word" if value is not None and value == word else None

    return Discriminator(shape, custom_error_type="spelling", custom_error_message=f"expected {expected}")


SchemaVersion = Annotated[Literal[1], BeforeValidator(_read_version)]
"""The number 1."""
