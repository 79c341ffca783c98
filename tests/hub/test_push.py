"""Publishing: what is checked before a byte is sent, what one commit holds, and what is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from eagle_convert import push_to_hub
from eagle_convert.errors import BrokenFileError, ConfigError, SourceError, UsageError
from eagle_convert.hub import errors as hub_errors
from eagle_convert.hub import folder as hub_folder
from eagle_convert.hub.push import PushReport
from eagle_convert.source import HubOptions

from .conftest import TOKEN
from .repos import User
from .server import Hub

REPO = "me/tiny-eagle"
ASKING = ("/whoami", "/api/models/", "/resolve/", "/validate-yaml")


def push(draft: Path, options: HubOptions, **how: object) -> PushReport:
    how.setdefault("license", "apache-2.0")
    return push_to_hub(draft, REPO, hub=options, **how)  # type: ignore[arg-type]


def actions(report: PushReport) -> dict[str, str]:
    return {file.path: file.action for file in report.files}


def head(hub: Hub) -> dict[str, bytes]:
    return {path: blob.data for path, blob in hub.world.repos[REPO].head.files.items()}


def metadata(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---")[1])


def nothing_sent(hub: Hub) -> bool:
    """Whether only questions were asked."""
    return all(s.method in ("GET", "HEAD") or "/validate-yaml" in s.path for s in hub.seen)


def test_a_folder_is_one_commit_and_reads_back(hub: Hub, options: HubOptions, draft: Path) -> None:
    report = push(draft, options, private=True)
    repo = hub.world.repos[REPO]
    assert repo.private
    assert len(repo.commits) == 2  # the hub's own first one, and ours
    assert report.commit == repo.head.oid
    local = {f.name: f.read_bytes() for f in draft.iterdir()}
    remote = head(hub)
    assert {path: remote[path] for path in local} == local
    assert set(remote) == {*local, "README.md", ".gitattributes"}
    assert remote["README.md"].decode() == report.card
    assert set(actions(report).values()) == {"uploaded"}
    document = report.document()
    assert document["schema"] == "eagle-convert/push/1"
    assert document["commit_url"] == f"{hub.url}/{REPO}/commit/{repo.head.oid}"
    assert {"path", "bytes", "sha256", "action"} == set(document["files"][0])
    assert not document["dry_run"]
    # read back: the listing at the new commit, and the header of the weights by range
    assert any(s.path.startswith(f"/api/models/{REPO}/revision/{repo.head.oid}") for s in hub.seen)
    assert any("/cdn/" in s.path and s.range for s in hub.seen)


def test_pushing_again_sends_nothing(hub: Hub, options: HubOptions, draft: Path) -> None:
    first = push(draft, options)
    hub.forget()
    again = push(draft, options)
    assert set(actions(again).values()) == {"unchanged"}
    assert nothing_sent(hub)
    assert again.commit == first.commit
    assert again.commit_url == first.commit_url


def test_only_what_changed_is_sent(hub: Hub, options: HubOptions, draft: Path) -> None:
    push(draft, options)
    hub.forget()
    (draft / "LICENSE").write_text("Apache License, corrected\n")
    report = push(draft, options)
    assert {p: a for p, a in actions(report).items() if a != "unchanged"} == {"LICENSE": "uploaded"}
    assert hub.count("/store/") == hub.count("/info/lfs/") == 0


# before a byte is sent

def test_dry_run_shows_card_files_and_sizes_and_sends_nothing(hub: Hub, options: HubOptions, draft: Path) -> None:
    report = push(draft, options, dry_run=True)
    assert report.dry_run
    assert report.commit is None
    assert REPO not in hub.world.repos
    assert nothing_sent(hub)
    assert {f.path: f.bytes for f in report.files} == {
        **{f.name: f.stat().st_size for f in draft.iterdir()}, "README.md": len(report.card.encode())}
    assert "vllm serve org/tiny" in report.card


def test_dry_run_without_a_token_still_shows_the_card(hub: Hub, options: HubOptions, draft: Path) -> None:
    report = push(draft, HubOptions(endpoint=hub.url, cache_dir=options.cache_dir), dry_run=True)
    assert "base_model: org/tiny" in report.card
    assert any("not checked" in note for note in report.notes)


def test_dry_run_offline(hub: Hub, options: HubOptions, draft: Path) -> None:
    report = push(draft, HubOptions(token=TOKEN, offline=True, cache_dir=options.cache_dir), dry_run=True)
    assert hub.seen == []
    assert any("offline" in note for note in report.notes)
    with pytest.raises(hub_errors.OfflineError):
        push(draft, HubOptions(token=TOKEN, offline=True))


def test_c119_null_and_empty_values_are_left_out_of_a_card(hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.world.add(REPO, {"README.md": b"---\nlicense: mit\ndatasets:\n- null\nlanguage: ''\nthumbnail: null\n"
                                      b"co2: {}\n---\n\n# Mine\n\nMy own words.\n"})
    report = push(draft, options, license=None)
    data = metadata(report.card)
    assert {"datasets", "language", "thumbnail", "co2"}.isdisjoint(data)
    assert data["license"] == "mit"
    assert "My own words." in report.card
    assert metadata(head(hub)["README.md"].decode()) == data


@pytest.mark.parametrize("where", ["folder", "remote"])
def test_c119_a_card_that_the_hub_would_refuse_is_refused_before_the_upload(
        where: str, hub: Hub, options: HubOptions, draft: Path) -> None:
    card = "---\nlicense: llama3.1-community-xyz\ndatasets:\n- null\n---\n\n# Mine\n"
    if where == "folder":
        (draft / "README.md").write_text(card)
    else:
        hub.world.add(REPO, {"README.md": card.encode()})
    for dry_run in (True, False):
        with pytest.raises(hub_errors.CardError, match="would refuse this card") as caught:
            push(draft, options, license=None, dry_run=dry_run)
    assert '"license" must be one of' in caught.value.where
    assert "license_name" in caught.value.how
    assert nothing_sent(hub)


def test_a_card_whose_metadata_cannot_be_read_is_named(hub: Hub, options: HubOptions, draft: Path) -> None:
    (draft / "README.md").write_text("---\nlicense: [mit\n---\n")
    with pytest.raises(hub_errors.CardError, match="cannot be read"):
        push(draft, options)
    assert nothing_sent(hub)


def test_a_folder_without_manifest_asks_for_base_model_and_license(
        hub: Hub, options: HubOptions, draft: Path) -> None:
    (draft / "eagle_convert.json").unlink()
    with pytest.raises(UsageError, match="--base-model and --license"):
        push_to_hub(draft, REPO, hub=options)
    with pytest.raises(UsageError, match="--license"):
        push_to_hub(draft, REPO, base_model="org/tiny", hub=options)
    assert hub.seen == []
    report = push_to_hub(draft, REPO, base_model=f"org/tiny@{'7' * 40}", license="mit", hub=options)
    assert metadata(report.card)["base_model"] == "org/tiny"
    assert "7" * 40 in report.card


def test_a_target_that_was_a_local_folder_asks_for_base_model(hub: Hub, options: HubOptions, draft: Path) -> None:
    file = draft / "eagle_convert.json"
    document = json.loads(file.read_text())
    document["target"]["id"] = "tiny"
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="hub id") as caught:
        push(draft, options)
    assert "'tiny'" in caught.value.where
    assert "--base-model" in caught.value.how


@pytest.mark.parametrize("damage", ["truncate", "flip", "drop", "config"])
def test_a_folder_that_is_not_whole_is_refused(damage: str, hub: Hub, options: HubOptions, draft: Path) -> None:
    weights = draft / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "truncate":
        weights.write_bytes(data[:-10])
    elif damage == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "drop":
        weights.unlink()
    else:
        (draft / "config.json").write_text("{")
    with pytest.raises((BrokenFileError, SourceError, ConfigError)):
        push(draft, options)
    assert hub.seen == []


def test_a_file_beyond_the_hubs_limit_names_the_flag(
        hub: Hub, options: HubOptions, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_folder, "FILE_LIMIT", 1000)
    with pytest.raises(hub_errors.TooLargeError) as caught:
        push(draft, options)
    assert "--max-shard-size" in caught.value.how
    assert hub.seen == []


def test_hidden_files_stay_here(hub: Hub, options: HubOptions, draft: Path) -> None:
    (draft / ".env").write_text("SECRET=1")
    (draft / ".cache").mkdir()
    (draft / ".cache" / "x").write_text("x")
    report = push(draft, options)
    assert {".env", ".cache/x"}.isdisjoint(head(hub))
    assert [n for n in report.notes if "hidden" in n] == [f"not pushed, hidden: {n}" for n in (".cache", ".env")]


# who

def test_c121_an_existing_repository_is_not_created_and_a_403_names_role_and_permission(
        hub: Hub, options: HubOptions, draft: Path) -> None:
    """A fine-grained token that may write to one repository and create none."""
    hub.world.users[TOKEN] = User("me", "fineGrained", scopes=(("model", REPO, ("repo.write",)),), may_create=False)
    hub.world.add(REPO, {"README.md": b"# Mine\n"})
    push(draft, options)
    assert hub.count("/api/repos/create") == 0
    (draft / "LICENSE").write_text("changed")
    hub.fail("/commit/", method="POST", status=403, body={"error": "Forbidden"})
    with pytest.raises(hub_errors.NoPermissionError) as caught:
        push(draft, options)
    said = str(caught.value)
    assert "role fineGrained" in said
    assert f"repo.write on {REPO}" in said
    assert TOKEN not in said


def test_c121_creating_without_permission(hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.world.users[TOKEN] = User("me", "write", may_create=False)
    with pytest.raises(hub_errors.NoPermissionError, match="may not create") as caught:
        push(draft, options)
    assert "namespace me" in caught.value.where
    assert REPO not in hub.world.repos
    assert hub.count("/store/") == 0


@pytest.mark.parametrize("user", [
    User("me", "read"),
    User("me", "fineGrained", scopes=(("model", "me/other", ("repo.write",)),)),
    User("me", "fineGrained", scopes=(("user", "me", ("repo.content.read",)),)),
])
def test_c121_a_token_that_may_not_write_is_refused_before_anything_is_sent(
        user: User, hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.world.users[TOKEN] = user
    with pytest.raises(hub_errors.NoPermissionError, match=f"role {user.role}"):
        push(draft, options)
    assert nothing_sent(hub)


def test_a_repository_of_others_is_refused_early_and_takes_a_pull_request(
        hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.world.users[TOKEN] = User("me", may_write=False)
    hub.world.add(REPO, {"README.md": b"# Theirs\n"})
    with pytest.raises(hub_errors.NoPermissionError) as caught:
        push(draft, options)
    assert "--create-pr" in caught.value.how
    assert nothing_sent(hub)
    report = push(draft, options, create_pr=True)
    repo = hub.world.repos[REPO]
    assert report.revision == "refs/pr/1"
    assert report.pull_request_url == f"{hub.url}/{REPO}/discussions/1"
    assert set(repo.head.files) == {"README.md"}
    assert "model.safetensors" in repo.commits[repo.refs["refs/pr/1"]].files


def test_no_token_and_a_wrong_one(hub: Hub, options: HubOptions, draft: Path) -> None:
    with pytest.raises(hub_errors.NoTokenError) as caught:
        push(draft, HubOptions(endpoint=hub.url))
    assert "hf auth login" in caught.value.how
    with pytest.raises(hub_errors.LoginError, match="does not know this token"):
        push(draft, HubOptions(token="hf_unknownToken", endpoint=hub.url))


# what is there already

def test_c123_older_weights_are_named_and_kept(hub: Hub, options: HubOptions, draft: Path) -> None:
    old = {"pytorch_model.bin": b"old", "README.md": b"# Mine\n", "notes.txt": b"note"}
    hub.world.add(REPO, old)
    report = push(draft, options)
    assert any("pytorch_model.bin" in note and "--replace" in note for note in report.notes)
    assert head(hub)["pytorch_model.bin"] == b"old"


def test_c123_replace_deletes_exactly_the_superseded_weights_in_the_same_commit(
        hub: Hub, options: HubOptions, draft: Path) -> None:
    keep = {"README.md": b"# Mine\n", "notes.txt": b"note", "training_args.bin": b"t", "optimizer.pt": b"o",
            "onnx/model.safetensors": b"sub", "head.gguf": b"g", "adapter_model.safetensors": b"a",
            "tokenizer.json": b"{}"}
    gone = {"pytorch_model.bin": b"1", "pytorch_model-00001-of-00002.bin": b"2", "pytorch_model.bin.index.json": b"{}",
            "model-00001-of-00002.safetensors": b"3", "model.safetensors.index.json": b"{}",
            "model.fp16.safetensors": b"4"}
    hub.world.add(REPO, keep | gone)
    before = len(hub.world.repos[REPO].commits)
    report = push(draft, options, replace=True)
    assert {p for p, a in actions(report).items() if a == "deleted"} == set(gone)
    assert len(hub.world.repos[REPO].commits) == before + 1
    files = head(hub)
    assert gone.keys().isdisjoint(files)
    assert {p: files[p] for p in keep if p != "README.md"} == {p: d for p, d in keep.items() if p != "README.md"}
    assert any("adapter_model.safetensors" in note for note in report.notes)


def test_a_branch_is_made_where_it_is_not_there(hub: Hub, options: HubOptions, draft: Path) -> None:
    for _ in range(2):
        report = push(draft, options, revision="v2")
    repo = hub.world.repos[REPO]
    assert report.revision == "v2"
    assert report.commit == repo.refs["v2"]
    assert set(repo.head.files) == {".gitattributes"}


def test_somebody_else_pushed_in_between(hub: Hub, options: HubOptions, draft: Path) -> None:
    """The commit builds on what was looked at; otherwise --replace could delete what nobody saw."""
    hub.world.add(REPO, {"README.md": b"# Mine\n"})
    hub.faults.append(_Intruder(hub))  # type: ignore[arg-type]
    with pytest.raises(hub_errors.ConflictError) as caught:
        push(draft, options)
    assert "again" in caught.value.how
    assert "model.safetensors" not in head(hub)


class _Intruder:
    """Commits to the repository when the upload starts; a fault that does nothing to the request."""

    times, status, drop = 1, None, None

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def match(self, seen: object) -> bool:
        if "/preupload/" not in seen.path:  # type: ignore[attr-defined]
            return False
        self.hub.world.add(REPO, {"README.md": b"# Mine, newer\n"})
        return True


# the card

def test_a_hand_written_card_keeps_its_text_and_only_our_section_changes(
        hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.world.add(REPO, {"README.md": b"---\nlicense: mit\ntags:\n- mine\n---\n# Mine\n\nBefore.\n"})
    first = push(draft, options, license=None).card
    assert "# Mine\n\nBefore.\n" in first
    assert metadata(first)["tags"][0] == "mine"  # type: ignore[index]
    edited = first.replace("Before.", "Before, edited.") + "\nAfter.\n"
    hub.world.add(REPO, {"README.md": edited.encode()})
    second = push(draft, options, license=None).card
    assert second == edited


def test_the_source_cards_license_is_taken_over(hub: Hub, options: HubOptions, draft: Path) -> None:
    source = hub.world.add("someone/EAGLE-tiny", {
        "README.md": b"---\nlicense: other\nlicense_name: tiny\nlicense_link: https://example.org/l\n---\n"})
    file = draft / "eagle_convert.json"
    document = json.loads(file.read_text())
    document["source"]["revision"] = source.head.oid
    file.write_text(json.dumps(document))
    data = metadata(push_to_hub(draft, REPO, hub=options).card)
    assert (data["license"], data["license_name"], data["license_link"]) == ("other", "tiny", "https://example.org/l")


def test_a_license_is_never_invented(hub: Hub, options: HubOptions, draft: Path) -> None:
    report = push_to_hub(draft, REPO, hub=options)
    assert "license" not in metadata(report.card)
    assert any("--license" in note for note in report.notes)


# weights of several parts, other transports

def test_large_files_go_up_in_parts(hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.chunk_size = 20_000
    push(draft, options)
    size = (draft / "model.safetensors").stat().st_size
    assert hub.count("/part/") == -(-size // 20_000)
    assert head(hub)["model.safetensors"] == (draft / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("status", "kind"), [
    (413, hub_errors.TooLargeError), (429, hub_errors.RateLimitError), (500, hub_errors.HubDownError),
    (401, hub_errors.HubError), (404, hub_errors.NoSuchRepoError)])
@pytest.mark.parametrize("path", ["/preupload/", "/lfs/objects/batch", "/store/", "/commit/"])
def test_a_refusal_on_the_way_has_its_own_type_and_leaves_no_commit(
        path: str, status: int, kind: type[Exception], hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.fail(path, status=status, times=99)
    with pytest.raises(kind) as caught:
        push(draft, options)
    assert caught.value.how  # type: ignore[attr-defined]
    assert set(head(hub)) == {".gitattributes"}


def test_what_is_served_is_compared_with_what_was_pushed(hub: Hub, options: HubOptions, draft: Path) -> None:
    """A store that serves other bytes under the right digest."""
    import hashlib

    data = (draft / "model.safetensors").read_bytes()
    oid = hashlib.sha256(data).hexdigest()
    hub.faults.append(_Swap(hub, oid, b"\x00" * len(data)))  # type: ignore[arg-type]
    with pytest.raises(hub_errors.NotAsPushedError, match="not what was pushed") as caught:
        push(draft, options)
    assert "model.safetensors" in caught.value.where


class _Swap:
    times, status, drop = 1, None, None

    def __init__(self, hub: Hub, oid: str, data: bytes) -> None:
        self.hub, self.oid, self.data = hub, oid, data

    def match(self, seen: object) -> bool:
        if "/cdn/" not in seen.path:  # type: ignore[attr-defined]
            return False
        self.hub.world.large[self.oid] = self.data
        return True
