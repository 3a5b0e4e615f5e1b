"""Random damage to a spec ends in a spec or in an InputError of one line, nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.specs.find import specs_root
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec

BASES = [(specs_root() / "models" / f"{name}.yaml").read_bytes() for name in ("llama-3.1-8b", "gemma-3n-e4b")]
SNIPPETS = [
    *(
        b"\t",
        b"\n",
        b"  ",
        b": ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"&a ",
        b"*a",
        b"!!int ",
        b"!x ",
        b"|",
        b">",
        b"'",
        b'"',
    ),
    *(
        b"---\n",
        b"...\n",
        b"%",
        b"#",
        b"? ",
        b"<<: ",
        b"null",
        b"true",
        b"1e400",
        b".nan",
        b"-1",
        b"0",
        b"9" * 30,
        b"\\uD800",
    ),
    *(
        b"every: 0",
        b"at: []",
        b"rest",
        b"overlay: true",
        b"kind: none",
        b"layers: 0",
        b"\x00",
        b"\xff",
        b"\xc2\x85",
        b"\r",
    ),
]
EDITS = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 12), st.sampled_from(SNIPPETS) | st.binary(max_size=4)),
    min_size=1,
    max_size=6,
)


def _load(content: bytes) -> ModelSpec | InputError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.yaml"
        path.write_bytes(content)
        try:
            return load_model(str(path))
        except InputError as error:
            return error


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BASES), EDITS)
@example(BASES[0], [(0, 0, b"\x85")])
@example(BASES[0], [(18, 12, b'id: "\\UFFFFFFFF"')])
def test_damage_is_an_input_error_or_a_spec(base: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    content = base
    for start, removed, inserted in edits:
        at = start % (len(content) + 1)
        content = content[:at] + inserted + content[at + removed :]
    result = _load(content)
    if isinstance(result, InputError):
        for text in (result.message, result.hint):
            assert text and text.isprintable()
        return
    owned = [i for group in result.layer_groups if not group.overlay for i in result.positions(group)]
    assert sorted(owned) == list(range(result.layers))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_input_error(content: bytes) -> None:
    assert isinstance(_load(content), InputError)


def test_the_bases_are_good() -> None:
    assert all(isinstance(_load(base), ModelSpec) for base in BASES)
