"""The real client against the loopback hub: its own cache, no waiting between retries, no stored login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants, utils
from huggingface_hub.utils import _http
from safetensors.numpy import save

from eagle_convert.hub import range as hub_range
from eagle_convert.manifest import Borrowed, Manifest, Origin, TargetOrigin
from eagle_convert.source import HubOptions
from eagle_convert.tensors import open_file

from .repos import User
from .server import Hub

TOKEN = "hf_sentinelTokenThatMustNeverShow"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub where ``me`` (token ``TOKEN``) may write."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "default-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(hub_range.time, "sleep", lambda seconds: None)
    utils.disable_progress_bars()
    with Hub() as running:
        running.world.users[TOKEN] = User("me")
        yield running
    # the client keeps connections: none may lead a later test to this hub's world
    getattr(_http, "close_session", getattr(_http, "reset_sessions", None))()


@pytest.fixture
def by_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """``hub`` as ``HF_ENDPOINT`` would make it the default; the client reads the variable once, at import."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    return hub


@pytest.fixture
def options(hub: Hub, tmp_path: Path) -> HubOptions:
    """How a user of ``hub`` reaches it: ``me``'s token and an empty cache."""
    return HubOptions(token=TOKEN, cache_dir=str(tmp_path / "cache"), endpoint=hub.url)


def table(rows: int, columns: int, salt: int = 0) -> np.ndarray:
    """Values that differ from row to row and from tensor to tensor, exact in half precision."""
    return ((np.arange(rows * columns, dtype=np.int64) * 7 + salt) % 251).astype(np.float16).reshape(rows, columns)


def sharded(tensors: dict[str, np.ndarray], shards: int) -> dict[str, bytes]:
    """A repository's weight files: ``tensors`` dealt out over ``shards`` files, and their index."""
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    per_shard = -(-len(tensors) // shards)
    weight_map = {tensor: names[i // per_shard] for i, tensor in enumerate(tensors)}
    files = {name: save({t: tensors[t] for t, n in weight_map.items() if n == name}, {"format": "pt"})
             for name in names}
    return files | {"model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weight_map}).encode()}


def header_of(data: bytes) -> bytes:
    """A safetensors file up to its data."""
    return data[:8 + int.from_bytes(data[:8], "little")]


@pytest.fixture
def target(hub: Hub) -> dict[str, bytes]:
    """``org/model``: 40 tensors in 8 shards; the embedding is in the first, the head in the last."""
    tensors = {"model.embed_tokens.weight": table(512, 64)}
    tensors |= {f"model.layers.{i}.mlp.up_proj.weight": table(128, 64, i) for i in range(38)}
    tensors |= {"lm_head.weight": table(512, 64, 3)}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 512}
    files = {"config.json": json.dumps(config).encode(), **sharded(tensors, 8)}
    hub.world.add("org/model", files)
    return files


@pytest.fixture
def draft(tmp_path: Path, fixtures_dir: Path) -> Path:
    """A compact folder ``draft``: RAND E1 without its embedding, with the manifest that a conversion writes."""
    folder = tmp_path / "draft"
    folder.mkdir()
    with open_file(fixtures_dir / "rand" / "e1" / "model.safetensors") as index:
        tensors = {name: index.array(name) for name in index}
        table = tensors.pop("embed_tokens.weight")
        ledger = [{"source": name, "destination": name, "action": "kept", "reason": "",
                   "sha256": index.sha256(name), "bytes": index[name].nbytes} for name in tensors]
        ledger.append({"source": "embed_tokens.weight", "destination": None, "action": "dropped",
                       "reason": "bit-equal to the target's", "sha256": index.sha256("embed_tokens.weight"),
                       "bytes": table.nbytes})
        borrowed = Borrowed("model.embed_tokens.weight", index.sha256("embed_tokens.weight"), "F16", table.shape)
    manifest = Manifest(Origin("someone/EAGLE-tiny", "5" * 40), TargetOrigin("org/tiny", "7" * 40, {
        "embed_tokens.weight": borrowed}), "eagle", "eagle1", tuple(ledger), options=("--dtype", "keep"))
    (folder / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    config = json.loads((fixtures_dir / "rand" / "e1" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "eagle_convert.json").write_bytes(manifest.encode())
    (folder / "LICENSE").write_text("Apache License\n")
    return folder
