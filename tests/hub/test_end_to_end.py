"""Convert from the hub, push, and read back by id: the commands as they are typed, and what crosses the wire."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load, load_file, save

from eagle_convert.cli import main

from .conftest import TOKEN, header_of, sharded
from .server import Hub

pytestmark = pytest.mark.usefixtures("by_environment")
DRAFT, TARGET, PUSHED = "org/EAGLE-tiny", "org/tiny", "me/EAGLE-tiny-compact"
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def run(*args: object, code: int = 0) -> dict[str, object]:
    result = CliRunner().invoke(main, [*map(str, args), "--json"], env={"HF_TOKEN": TOKEN})
    assert result.exit_code == code, result.stdout + result.stderr
    assert TOKEN not in result.stdout + result.stderr
    return json.loads(result.stdout)


def ids(document: dict[str, object]) -> list[str]:
    return [finding["id"] for finding in document["findings"]]  # type: ignore[index,attr-defined]


@pytest.fixture
def published(hub: Hub, fixtures_dir: Path) -> Path:
    """RAND E1 as a repository, and its target with 40 tensors in 8 shards."""
    folder = fixtures_dir / "rand" / "e1"
    hub.world.add(DRAFT, {f.name: f.read_bytes() for f in folder.iterdir()} | {
        "README.md": b"---\nlicense: apache-2.0\n---\n", "LICENSE": b"Apache License\n"})
    real = load_file(fixtures_dir / "rand" / "tgt" / "model.safetensors")
    names = [n for n in real if n not in TABLES][:20]
    more = {f"model.more.{i}.weight": np.zeros((64, 64), np.float16) for i in range(38 - len(names))}
    tensors = {TABLES[0]: real[TABLES[0]]} | {n: real[n] for n in names} | more | {TABLES[1]: real[TABLES[1]]}
    config = (fixtures_dir / "rand" / "tgt" / "config.json").read_bytes()
    hub.world.add(TARGET, {"config.json": config, **sharded(tensors, 8)})
    return folder


def headers_of_tables(hub: Hub) -> int:
    files = hub.world.repos[TARGET].head.files
    index = json.loads(files["model.safetensors.index.json"].data)["weight_map"]
    return sum(len(header_of(files[name].data)) for name in {index[t] for t in TABLES})


def test_a_local_head_against_a_sharded_target_reads_headers_and_what_is_compared(
        hub: Hub, published: Path) -> None:
    document = run("inspect", published, "--target", TARGET)
    assert "EC301" in ids(document)
    embedding = 320 * 64 * 2
    needed = headers_of_tables(hub) + embedding  # an EAGLE-1 head has no lm_head to compare
    assert needed <= hub.bytes_sent("/cdn/") <= 1.01 * needed
    assert hub.count("/cdn/") == 5


def test_two_tables_compared(hub: Hub, published: Path, tmp_path: Path) -> None:
    """A head that carries a copy of both tables."""
    tensors = load_file(published / "model.safetensors")
    real = load_target(hub)
    tensors["lm_head.weight"] = real["lm_head.weight"]
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_bytes((published / "config.json").read_bytes())
    (head / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    document = run("inspect", head, "--target", TARGET)
    assert ids(document).count("EC301") == 2
    needed = headers_of_tables(hub) + 2 * 320 * 64 * 2
    assert needed <= hub.bytes_sent("/cdn/") <= 1.01 * needed


def load_target(hub: Hub) -> dict[str, np.ndarray]:
    files = hub.world.repos[TARGET].head.files
    return {k: v for name, blob in files.items() if name.endswith(".safetensors") for k, v in load(blob.data).items()}


@pytest.fixture
def pushed(hub: Hub, published: Path, tmp_path: Path) -> Path:
    """The compact folder, converted from hub ids and pushed."""
    folder = tmp_path / "compact"
    run("convert", DRAFT, folder, "--target", TARGET)
    run("push-to-hub", folder, PUSHED)
    hub.forget()
    return folder


def test_converting_ids_gives_the_bytes_of_converting_folders(
        hub: Hub, published: Path, pushed: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    for name, blob in hub.world.repos[TARGET].head.files.items():
        (local / name).write_bytes(blob.data)
    run("convert", published, tmp_path / "again", "--target", local)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (pushed / "model.safetensors").read_bytes()
    assert (tmp_path / "again" / "config.json").read_bytes() == (pushed / "config.json").read_bytes()


def test_the_manifest_names_ids_and_commits(hub: Hub, pushed: Path) -> None:
    manifest = json.loads((pushed / "eagle_convert.json").read_text())
    assert (manifest["source"]["id"], manifest["source"]["revision"]) == (DRAFT, hub.world.repos[DRAFT].head.oid)
    assert (manifest["target"]["id"], manifest["target"]["revision"]) == (TARGET, hub.world.repos[TARGET].head.oid)
    card = hub.world.repos[PUSHED].head.files["README.md"].data.decode()
    assert "license: apache-2.0" in card  # from the source's card
    assert f"base_model: {TARGET}" in card
    assert f"eagle-convert convert {DRAFT}@{manifest['source']['revision']}" in card
    assert f"--target {TARGET}@{manifest['target']['revision']}" in card


def test_what_was_pushed_inspects_by_id_against_the_recorded_commit_with_headers_only(hub: Hub, pushed: Path) -> None:
    document = run("inspect", PUSHED, "--target", TARGET)
    assert {"EC911", "EC913"} <= set(ids(document))
    target = hub.world.repos[TARGET].head.files.values()
    read = sum(hub.bytes_sent(f"/cdn/{blob.sha256}") for blob in target)
    assert headers_of_tables(hub) <= read <= headers_of_tables(hub) + 2 * 64  # each header is sized up first
    assert hub.bytes_sent() < 2_000_000
    weights = hub.world.repos[PUSHED].head.files["model.safetensors"]
    assert hub.count(f"/cdn/{weights.sha256}") == 3  # sizing up, header, and all small tensors in one go
    assert hub.bytes_sent(f"/cdn/{weights.sha256}") == len(weights.data) + 56


def test_another_commit_of_the_target_is_compared_by_digest(hub: Hub, pushed: Path) -> None:
    files = {path: blob.data for path, blob in hub.world.repos[TARGET].head.files.items()}
    hub.world.add(TARGET, files | {"notes.txt": b"a new commit with the same weights"})
    document = run("inspect", PUSHED, "--target", TARGET)
    said = next(f for f in document["findings"] if f["id"] == "EC913")  # type: ignore[union-attr]
    assert "digests read" in said["message"]  # type: ignore[index]


def test_another_target_is_told_by_its_digest(hub: Hub, pushed: Path) -> None:
    tensors = load_target(hub)
    tensors[TABLES[0]] = tensors[TABLES[0]] + np.float16(1)
    config = hub.world.repos[TARGET].head.files["config.json"].data
    hub.world.add("org/other", {"config.json": config, **sharded(tensors, 8)})
    document = run("inspect", PUSHED, "--target", "org/other", code=3)
    said = next(f for f in document["findings"] if f["id"] == "EC914")  # type: ignore[union-attr]
    assert TARGET in said["fix"]  # type: ignore[index]


def test_weights_that_were_changed_on_the_hub_are_told_with_deep(hub: Hub, pushed: Path) -> None:
    data = bytearray((pushed / "model.safetensors").read_bytes())
    data[-100] ^= 1
    files = {path: blob.data for path, blob in hub.world.repos[PUSHED].head.files.items()}
    hub.world.add(PUSHED, files | {"model.safetensors": bytes(data)})
    assert "EC911" in ids(run("inspect", PUSHED))
    assert "EC912" in ids(run("inspect", PUSHED, "--deep", code=3))


def test_a_tensor_that_is_gone_is_told_from_the_header(hub: Hub, pushed: Path, tmp_path: Path) -> None:
    manifest = json.loads((pushed / "eagle_convert.json").read_text())
    manifest["ledger"].append({"source": "fc.bias", "destination": "fc.bias", "action": "kept", "reason": "",
                               "sha256": "0" * 64, "bytes": 128})
    (pushed / "eagle_convert.json").write_text(json.dumps(manifest))
    said = [f for f in run("inspect", pushed, code=3)["findings"] if f["id"] == "EC912"]  # type: ignore[union-attr]
    assert "fc.bias" in said[0]["where"]  # type: ignore[index]
