"""A push cut off at every request in turn, then pushed again: the right end, no half commit, nothing sent twice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from eagle_convert import push_to_hub
from eagle_convert.errors import HubError
from eagle_convert.source import HubOptions

from .conftest import TOKEN
from .repos import User
from .server import Fault, Hub, Seen

REPO = "me/tiny-eagle"


class CutAt:
    """From request ``n`` on nobody answers any more, as when the process or the network died there.

    ``after``: the request itself still takes effect on the hub, only its answer is lost.
    """

    def __init__(self, n: int, *, after: bool) -> None:
        self.n, self.after, self.count = n, after, 0

    def __call__(self, seen: Seen) -> bool:
        self.count += 1
        return self.count >= self.n

    def faults(self) -> list[Fault]:
        first = Fault(self, times=1, drop="after" if self.after else "before")
        return [first, Fault(lambda seen: first.times == 0, times=10**6, drop="before")]


def prepared(hub: Hub, existing: bool) -> dict[str, bytes]:
    """The hub before the push; the files of its repository."""
    hub.world.repos.clear()
    hub.world.large.clear()
    files = {"pytorch_model.bin": b"old weights", "README.md": b"# Mine\n", "notes.txt": b"note"} if existing else {}
    if existing:
        hub.world.add(REPO, files)
    return files


def push(draft: Path, options: HubOptions) -> None:
    push_to_hub(draft, REPO, hub=options, license="mit", replace=True)


def wanted(draft: Path, old: dict[str, bytes]) -> set[str]:
    return {f.name for f in draft.iterdir()} | {"README.md"} | ({"notes.txt"} if old else {".gitattributes"})


@pytest.mark.parametrize("existing", [False, True], ids=["new repository", "old weights there"])
@pytest.mark.parametrize("after", [False, True], ids=["request lost", "answer lost"])
def test_cut_at_every_request(existing: bool, after: bool, hub: Hub, options: HubOptions, draft: Path,
                              tmp_path: Path) -> None:
    prepared(hub, existing)
    push(draft, options)
    requests, weights = len(hub.seen), (draft / "model.safetensors").stat().st_size
    uncut: list[int] = []
    for n in range(1, requests + 1):
        old = prepared(hub, existing)
        fresh = HubOptions(token=TOKEN, cache_dir=str(tmp_path / f"cache-{n}"), endpoint=hub.url)
        hub.forget()
        hub.faults[:] = CutAt(n, after=after).faults()
        with suppress(HubError):
            push(draft, fresh)
            uncut.append(n)
        hub.faults.clear()
        repo = hub.world.repos.get(REPO)
        if repo is not None:  # all of the commit or none of it
            assert set(repo.head.files) in (set(old) or {".gitattributes"}, wanted(draft, old))
        sent = hub.bytes_received("/store/")
        uploaded = any(len(data) == weights for data in hub.world.large.values())
        push(draft, fresh)
        assert set(hub.world.repos[REPO].head.files) == wanted(draft, old)
        assert hub.world.repos[REPO].head.files["model.safetensors"].data == (draft / "model.safetensors").read_bytes()
        assert hub.bytes_received("/store/") == sent + (0 if uploaded else weights)
        ours = [c for c in hub.world.repos[REPO].commits.values() if c.summary.startswith("Upload")]
        assert len(ours) == 1
    assert uncut == []


@pytest.mark.parametrize("path", ["/preupload/", "/lfs/objects/batch", "/store/", "/lfs/objects/verify"])
def test_one_lost_connection_is_retried(path: str, hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.fail(path, drop="before", times=2)
    push(draft, options)
    assert "model.safetensors" in hub.world.repos[REPO].head.files


def test_an_upload_that_drops_half_way_is_not_stored(hub: Hub, options: HubOptions, draft: Path) -> None:
    hub.fail("/store/", drop="before", times=99)
    with pytest.raises(HubError):
        push(draft, options)
    assert hub.world.large == {}
    hub.faults.clear()
    push(draft, options)
    assert "model.safetensors" in hub.world.repos[REPO].head.files


def test_interrupting_a_pull_request_leaves_no_second_one_with_half(hub: Hub, options: HubOptions, draft: Path) -> None:
    """The commit is what opens the pull request: it is there with all of its files, or not at all."""
    hub.world.users[TOKEN] = User("me")
    hub.world.add(REPO, {"README.md": b"# Mine\n"})
    hub.fail("/commit/", drop="before")
    with pytest.raises(HubError):
        push_to_hub(draft, REPO, hub=options, license="mit", create_pr=True)
    assert hub.world.repos[REPO].pull_requests == 0
    push_to_hub(draft, REPO, hub=options, license="mit", create_pr=True)
    assert hub.world.repos[REPO].pull_requests == 1
