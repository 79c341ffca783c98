"""What several tests need: where the bundled checkpoints lie, and the real target."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.smollm2 import build_target

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The folder of the bundled checkpoints: ``plant/e1``, ``layouts/e1-bin``, ``smollm2/eagle1``, …"""
    return ROOT / "fixtures"


@pytest.fixture(scope="session")
def smollm2_target() -> Path:
    """The SmolLM2 target folder (fp32, four shards). Absent, it is an error, not a skip: ``make smollm2`` builds it."""
    folder = build_target.target_folder()
    if not (folder / "config.json").is_file():
        pytest.fail(f"{folder} is not there: run `make smollm2` first", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def smollm2_official(smollm2_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official EAGLE-1 folder for it: head and fp16 embedding in one ``pytorch_model.bin`` (65 MB)."""
    return build_target.official_eagle1(tmp_path_factory.mktemp("smollm2") / "EAGLE-SmolLM2", smollm2_target)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip(f"no CUDA device: torch {torch.__version__}")


@pytest.fixture(scope="session")
def engine_python() -> Callable[[str], Path]:
    """The interpreter of another engine (``official1``, ``official``, ``vllm``), as `make engines` builds them."""
    def find(name: str) -> Path:
        python = Path(os.environ.get("EAGLE_ENGINES") or ROOT / ".engines") / name / "bin" / "python"
        if not python.exists():
            pytest.fail(f"{python} is not there: run `make engines` first", pytrace=False)
        return python

    return find
