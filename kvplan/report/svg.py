"""A picture of matplotlib's as part of a page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def to_svg(figure: Figure) -> str:
    """The picture's `<svg>` element; letters as outlines, so that no font is loaded."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # The preamble names a DTD by its address; comments repeat each text.
    text = buffer.getvalue()
    return re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
