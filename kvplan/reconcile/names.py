"""Names in logs: a model's name without its path, and settings without anything else that a line holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HUB_FOLDER = re.compile(r"models--([A-Za-z0-9_.-]+?)--([A-Za-z0-9_.-]+)")
_HUB_ID = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,95})/([A-Za-z0-9][A-Za-z0-9_.-]{0,95})")
_FILE = re.compile(r"\.(?:gguf|bin|safetensors|pt|pth|engine|json|ya?ml)$", re.I)
_HASH = re.compile(r"(?:sha256-)?[0-9a-f]{24,}")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?")
_STRANGE = re.compile(r"[^A-Za-z0-9_.+ -]")
# First parts of relative paths that are no owner on a hub.
_FOLDERS = re.compile(
    r"(home|root|users?|mnt|data|models?|tmp|work(space)?|opt|srv|var|usr|app|raid|scratch|checkpoints?|engines?"
    r"|weights|local|share|media|volumes?|storage|host|nfs|gpfs|hf|cache|llms?)",
    re.I,
)
_MODEL_NAME = 100

_VALUE = r"""(?:'([A-Za-z0-9_.+-]*)'|"([A-Za-z0-9_.+-]*)"|([A-Za-z0-9_.+-]+))"""


def model_name(text: str) -> str | None:
    """A model's name as given, without a path: the last part, or `owner/name` of a hub; None if nothing is left.

    The folder in which the hub's client keeps a model has its id in its name, so that one is read back.
    """
    text = text.strip().strip("'\"")
    if hub := _HUB_FOLDER.search(text):
        return f"{hub[1]}/{hub[2]}"
    whole = _HUB_ID.fullmatch(text)
    if whole and not _FOLDERS.fullmatch(whole[1]) and not _FILE.search(text):
        return None if _ADDRESS.fullmatch(whole[1]) else text
    last = re.split(r"[/\\]+", text.rstrip("/\\"))[-1]
    # The spaces of a model's own title are kept; everything that may structure a path or an address is not.
    last = _STRANGE.sub("_", last).strip()[:_MODEL_NAME]
    if not last.strip("._~ ") or _HASH.fullmatch(last) or _ADDRESS.fullmatch(last) or "://" in text:
        return None
    return last


def settings(text: str, keys: Iterable[str]) -> dict[str, str]:
    """The values of these keys in a line that spells `key=value`, `'key': value` or `--key value`.

    Only words and numbers are taken: never a path, an address or a nested value.
    """
    found = {}
    for key in keys:
        spelled = key.replace("_", "[_-]")
        match = re.search(
            rf"(?<![A-Za-z0-9_])['\"]?{spelled}['\"]?\s*(?:[:=]\s*|\s)<?{_VALUE}(?![A-Za-z0-9_./\\:@])", text
        )
        if match:
            value = next(v for v in match.groups() if v is not None)
            if value and not _ADDRESS.fullmatch(value) and len(value) < 60:
                found[key] = value.removeprefix("torch.")
    return found
