"""The Xet upload, which the client prefers wherever ``hf-xet`` is installed: its token, and its failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from eagle_convert import push_to_hub
from eagle_convert.hub.errors import XetError
from eagle_convert.source import HubOptions

from .conftest import TOKEN
from .server import Hub

pytest.importorskip("hf_xet")
REPO = "me/tiny-eagle"


@pytest.fixture(autouse=True)
def _xet(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)


@pytest.mark.parametrize("refused", ["token", "store"])
def test_a_failed_xet_upload_says_how_to_do_without(
        refused: str, hub: Hub, options: HubOptions, draft: Path, monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str]) -> None:
    if refused == "token":
        hub.fail("/xet-write-token/", status=403, times=99, body={"error": f"not with {TOKEN}"})
    with pytest.raises(XetError, match="Xet") as caught:
        push_to_hub(draft, REPO, hub=options, license="mit")
    assert "HF_HUB_DISABLE_XET=1" in caught.value.how
    out, err = capfd.readouterr()
    assert TOKEN not in str(caught.value) + out + err
    assert "xet-secret" not in str(caught.value) + out + err
    asked = [s for s in hub.seen if "/xet-write-token/" in s.path]
    assert asked
    assert all(s.token == TOKEN for s in asked)
    assert bool(hub.count("/cas/")) == (refused == "store")
    assert all(s.token != TOKEN for s in hub.seen if "/cas/" in s.path)
    assert hub.count("/commit/") == hub.count("/store/") == 0
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    push_to_hub(draft, REPO, hub=options, license="mit")
    assert "model.safetensors" in hub.world.repos[REPO].head.files
