"""Where the shipped spec files are, in a wheel, an sdist, an editable install and a checkout."""

from __future__ import annotations

from pathlib import Path

from kvplan.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def specs_root() -> Path:
    """The folder that holds `models/` and `devices/`.

    A wheel carries it inside the package; everywhere else it lies beside the package `kvplan`.

    Raises:
        InputError: the installation lacks the folder.
    """
    beside = _PACKAGE.parent / "model_specs"
    inside = _PACKAGE / "_model_specs"
    # pyproject.toml tells a source tree from site-packages, where a foreign `model_specs` may lie beside us.
    source_tree = (_PACKAGE.parent / "pyproject.toml").is_file()
    for folder in (beside, inside) if source_tree else (inside, beside):
        if (folder / "models").is_dir() and (folder / "devices").is_dir():
            return folder
    raise InputError(
        f"the shipped specs are missing: neither {inside} nor {beside} exists",
        "reinstall, or give a path to a spec file",
    )
