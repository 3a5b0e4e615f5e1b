"""Models by Hugging Face id: a stand-in for the client, no network."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.specs.importers import hub
from kvplan.specs.importers.hub import import_hub

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2048,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
INDEX = {"metadata": {"total_size": 2471628800}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}


class EntryNotFoundError(Exception):
    """As the client's."""


class LocalEntryNotFoundError(EntryNotFoundError):
    """As the client's."""


class RepositoryNotFoundError(Exception):
    """As the client's."""


class GatedRepoError(RepositoryNotFoundError):
    """As the client's."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Installs a client that answers from these files (an exception is raised), and gives the list of its calls."""

    def install(**files: Any) -> list[str]:
        asked: list[str] = []

        def download(repo: str, name: str, **options: Any) -> str:
            asked.append(name)
            answer = files.get(name.split(".")[0], EntryNotFoundError("404"))
            if isinstance(answer, BaseException):
                raise answer
            if callable(answer):
                answer = answer()
            assert repo == "someone/Small-1B" and options["etag_timeout"] <= 10
            path = tmp_path / name
            path.write_text(answer if isinstance(answer, str) else json.dumps(answer))
            return str(path)

        module = ModuleType("huggingface_hub")
        module.hf_hub_download = download  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return asked

    return install


def test_config_and_index_are_all_that_is_read(client: Callable[..., list[str]]) -> None:
    asked = client(config=CONFIG, model=INDEX)
    imported = import_hub("someone/Small-1B")
    assert asked == ["config.json", "model.safetensors.index.json"]
    spec = imported.spec
    assert (spec.id, spec.hf_ids, spec.layers) == ("small-1b", ("someone/Small-1B",), 16)
    assert spec.weights is not None
    assert (spec.weights.bytes, spec.weights.dtype) == (2471628800, "bfloat16")
    assert imported.origins[-1].field == "weights.bytes" and imported.origins[-1].how == "read"


def test_a_model_without_an_index_has_no_weight_bytes(client: Callable[..., list[str]]) -> None:
    client(config=CONFIG)
    assert import_hub("someone/Small-1B").spec.weights is None


def test_the_published_quantisation_names_the_weights(client: Callable[..., list[str]]) -> None:
    client(config=CONFIG | {"quantization_config": {"quant_method": "compressed-tensors"}}, model=INDEX)
    weights = import_hub("someone/Small-1B").spec.weights
    assert weights is not None and weights.dtype == "compressed_tensors"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GatedRepoError("403"), "the model is gated"),
        (RepositoryNotFoundError("404"), "no such model on the hub"),
        (EntryNotFoundError("404"), "config.json: the model has no such file"),
        (LocalEntryNotFoundError("offline"), "not in the local cache, and the hub cannot be reached"),
        (ConnectionError("no\nroute"), "cannot be downloaded: no route"),
        (TimeoutError(), "cannot be downloaded: TimeoutError"),
        (SystemExit(3), "cannot be downloaded"),
    ],
)
def test_failures_are_one_line_with_a_way_out(
    error: BaseException, message: str, client: Callable[..., list[str]]
) -> None:
    client(config=error)
    with pytest.raises(InputError) as caught:
        import_hub("someone/Small-1B")
    assert message in caught.value.message
    assert "config.json yourself" in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_failing_index_is_an_error_unless_it_is_absent(client: Callable[..., list[str]]) -> None:
    client(config=CONFIG, model=ConnectionError("reset"))
    with pytest.raises(InputError, match=r"index\.json cannot be downloaded"):
        import_hub("someone/Small-1B")
    client(config=CONFIG, model={"metadata": {}})
    with pytest.raises(InputError, match="total_size"):
        import_hub("someone/Small-1B")


def test_a_client_that_never_answers_is_left_alone(
    client: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.1)
    client(config=lambda: time.sleep(2))
    start = time.monotonic()
    with pytest.raises(InputError, match=r"no answer from the hub within 0\.1 seconds"):
        import_hub("someone/Small-1B")
    assert time.monotonic() - start < 1.5


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="needs the huggingface_hub package") as caught:
        import_hub("someone/Small-1B")
    assert "kvplan-advisor[hub]" in caught.value.hint


@pytest.mark.parametrize("name", ["", "llama", "a/b/c", "a b/c", "/a", "a/"])
def test_names_that_are_no_id_reach_no_client(name: str, client: Callable[..., list[str]]) -> None:
    asked = client(config=CONFIG)
    with pytest.raises(InputError, match="no Hugging Face id"):
        import_hub(name)
    assert asked == []


def test_an_unknown_architecture_is_refused_by_name(client: Callable[..., list[str]]) -> None:
    client(config=CONFIG | {"model_type": "nothing_known"})
    with pytest.raises(InputError, match="nothing_known"):
        import_hub("someone/Small-1B")
