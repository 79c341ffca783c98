"""A pushed folder, pulled by id into an empty cache, passes ``parity-check`` against what it was made from."""

from __future__ import annotations

from pathlib import Path

from .server import Hub
from .test_end_to_end import pytestmark, run

__all__ = ["pytestmark"]


def test_a_pulled_head_is_at_parity_with_its_source(
        hub: Hub, fixtures_dir: Path, tmp_path: Path) -> None:
    plant = fixtures_dir / "plant"
    for name, folder in (("org/planted", "tgt"), ("org/EAGLE-planted", "e1")):
        hub.world.add(name, {f.name: f.read_bytes() for f in (plant / folder).iterdir()} | {"rust_model.ot": b"\0"})
    run("convert", "org/EAGLE-planted", tmp_path / "compact", "--target", "org/planted")
    run("push-to-hub", tmp_path / "compact", "me/planted", "--license", "mit")
    report = run("parity-check", "me/planted", "--target", "org/planted", "--prompts", plant / "prompts.jsonl",
                 "--num-prompts", 3, "--max-new-tokens", 24, "--cache-dir", tmp_path / "empty-cache")
    assert report["verdict"] == "pass"
    assert report["candidate"]["acceptance_length"] == 5.0  # type: ignore[index]
    cached = {file.name for file in (tmp_path / "empty-cache").rglob("snapshots/*/*")}
    assert "model.safetensors" in cached
    assert "rust_model.ot" not in cached, "weights of another format are of no use"
