"""``eagle-convert push-to-hub`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_convert.cli import main

from .conftest import TOKEN
from .repos import User
from .server import Hub

REPO = "me/tiny-eagle"
pytestmark = pytest.mark.usefixtures("by_environment")


def run(*args: object, token: str | None = TOKEN) -> Result:
    return CliRunner().invoke(main, ["push-to-hub", *map(str, args)], env={"HF_TOKEN": token})


def test_json_is_one_document(hub: Hub, draft: Path) -> None:
    result = run(draft, REPO, "--license", "mit", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "eagle-convert/push/1"
    assert document["repo_id"] == REPO
    assert {f["action"] for f in document["files"]} == {"uploaded"}
    assert document["card"] == hub.world.repos[REPO].head.files["README.md"].data.decode()
    assert TOKEN not in result.stdout + result.stderr


def test_text_and_quiet_name_the_commit(hub: Hub, draft: Path) -> None:
    result = run(draft, f"hf://{REPO}", "--license", "mit")
    url = f"{hub.url}/{REPO}/commit/{hub.world.repos[REPO].head.oid}"
    assert url in result.stdout
    assert "model.safetensors" in result.stdout
    assert run(draft, REPO, "--license", "mit", "--quiet").stdout == url + "\n"


def test_dry_run_prints_card_files_and_sizes(hub: Hub, draft: Path) -> None:
    result = run(draft, REPO, "--license", "mit", "--dry-run")
    assert result.exit_code == 0
    size = (draft / "model.safetensors").stat().st_size
    assert f"{size:,}" in result.stdout
    assert "base_model: org/tiny" in result.stdout
    assert REPO not in hub.world.repos


def test_warnings_go_to_stderr(hub: Hub, draft: Path) -> None:
    hub.world.add(REPO, {"pytorch_model.bin": b"old"})
    result = run(draft, REPO, "--license", "mit")
    assert result.exit_code == 0
    assert "warning: older weights stay" in result.stderr
    assert "--replace" in result.stderr
    result = run(draft, REPO, "--replace", "--license", "mit", "--json")
    assert {f["path"]: f["action"] for f in json.loads(result.stdout)["files"]}["pytorch_model.bin"] == "deleted"


@pytest.mark.parametrize(("args", "code", "kind"), [
    (("--license", "llama-xyz"), 1, "CardError"), (("--license", "mit", "--base-model", "no id"), 2, "UsageError"),
    (("--license", "mit", "--parity", "absent.json"), 1, "ConfigError"),
    (("--license", "mit", "--revision", "v1", "--create-pr"), 1, "NoSuchRevisionError")])
def test_errors_are_documents(args: tuple[str, ...], code: int, kind: str, hub: Hub, draft: Path) -> None:
    hub.world.add(REPO, {"README.md": b"# Mine\n"})
    result = run(draft, REPO, "--json", *args)
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["schema"] == "eagle-convert/error/1"
    assert document["error"]["type"] == kind
    assert all(document["error"][key] for key in ("what", "where", "how"))


def test_a_traceback_with_vv_does_not_show_the_token(hub: Hub, draft: Path) -> None:
    hub.world.users[TOKEN] = User("me", "read")
    result = run(draft, REPO, "--license", "mit", "-vv", "--token", TOKEN)
    assert result.exit_code == 1
    assert "role read" in result.stderr
    assert TOKEN not in result.stdout + result.stderr


def test_no_token(hub: Hub, draft: Path) -> None:
    result = run(draft, REPO, "--license", "mit", token=None)
    assert result.exit_code == 1
    assert "hf auth login" in result.stderr
