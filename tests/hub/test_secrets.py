"""The token never shows: not in output, logs, errors, tracebacks, cards or files; whatever goes wrong."""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from eagle_convert import push_to_hub
from eagle_convert.errors import EagleConvertError
from eagle_convert.hub.errors import explain, redact
from eagle_convert.source import HubOptions, open_source
from eagle_convert.tensors import open_index

from .conftest import TOKEN
from .server import Hub

REPO = "me/tiny-eagle"
PLACES = ("/whoami", "/api/models/", "/auth-check", "/validate-yaml", "/repos/create", "/preupload/",
          "/lfs/objects/batch", "/store/", "/commit/", "/cdn/")


@pytest.mark.parametrize("debug", [False, True], ids=["", "HF_DEBUG"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500])
def test_no_failure_shows_it(status: int, debug: bool, hub: Hub, options: HubOptions, draft: Path,
                             monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
                             capfd: pytest.CaptureFixture[str]) -> None:
    """The hub refuses at each place in turn and echoes the token in its answer, as a broken proxy might."""
    monkeypatch.setattr(constants, "HF_DEBUG", debug, raising=False)
    caplog.set_level(logging.DEBUG)
    failed = 0
    for place in PLACES:
        hub.faults.clear()
        hub.world.repos.clear()
        hub.world.large.clear()
        if place == "/auth-check":
            hub.world.add(REPO, {"README.md": b"# Mine\n"})
        hub.fail(place, status=status, times=99, body={"error": f"refused: Bearer {TOKEN}"},
                 headers={"X-Error-Message": f"token {TOKEN}"})
        try:
            push_to_hub(draft, REPO, hub=options, license="mit")
        except EagleConvertError as error:
            failed += 1
            told = "".join(traceback.format_exception(error)) + repr(error) + str(error) + str(vars(error))
            assert TOKEN not in told
    assert failed >= len(PLACES) - 1  # a hub need not offer the check of the permission
    out, err = capfd.readouterr()
    assert TOKEN not in out + err
    ours = [r for r in caplog.records if r.name.startswith(("eagle_convert", "huggingface_hub"))]
    assert TOKEN not in "".join(r.getMessage() for r in ours)


def test_a_push_that_works_leaves_it_nowhere(hub: Hub, options: HubOptions, draft: Path, tmp_path: Path,
                                             caplog: pytest.LogCaptureFixture,
                                             capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    report = push_to_hub(draft, REPO, hub=options, license="mit")
    with open_index(open_source(REPO, hub=options)) as index:
        index.sha256("fc.weight")
    out, err = capfd.readouterr()
    assert TOKEN not in out + err + caplog.text + str(report) + repr(report) + str(report.document())
    for blob in hub.world.repos[REPO].head.files.values():
        assert TOKEN.encode() not in blob.data
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes()


def test_options_do_not_print_it() -> None:
    options = HubOptions(token=TOKEN)
    assert TOKEN not in repr(options) + str(options) + repr(replace(options, offline=True))


def test_credentials_in_an_endpoint_are_struck_out() -> None:
    assert redact("GET https://me:pw@mirror.example/x failed") == "GET https://***@mirror.example/x failed"


def test_the_stored_token_is_struck_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = explain(ConnectionError(f"could not send Bearer {TOKEN}"), "me/x", HubOptions())
    assert error is not None
    assert TOKEN not in str(error)
