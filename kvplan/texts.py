"""The texts of fields: the docstring below each attribute of a class, read from its source when somebody asks.

pydantic can collect them while it builds a class (`use_attribute_docstrings`), but that takes longer than a plan.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


@cache
def attribute_texts(cls: type) -> dict[str, str]:
    """Attribute name to its docstring on one line, of this class alone; attributes without one are left out."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in pairwise(tree.body):
        # Fields are annotated, members of an enumeration are not.
        target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
        if not (isinstance(target, ast.Name) and isinstance(text, ast.Expr)):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            found[target.id] = " ".join(text.value.value.split())
    return found


def field_text(cls: type, name: str) -> str:
    """The text of a field of a class or of the nearest base that has it; empty without one."""
    return next((text for base in cls.__mro__ if name in vars(base).get("__annotations__", {})
                 if (text := attribute_texts(base).get(name))), "")  # fmt: skip
