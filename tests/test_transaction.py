"""DEST is absent, old, or new, whatever kills the process; and what DEST may not be."""

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from eagle_convert.errors import DestinationError
from eagle_convert.files import transaction
from eagle_convert.files.transaction import Staging, check_destination
from eagle_convert.tensors import open_file
from tests.killed_writer import SIZE, TENSORS, write

SCRIPT = Path(__file__).with_name("killed_writer.py")


def fill(folder, text="new"):
    (folder / "config.json").write_text(text)


def siblings(dest):
    return [p.name for p in dest.parent.iterdir() if p != dest]


def test_appears_whole(tmp_path):
    dest = tmp_path / "a" / "b" / "dest"
    with Staging(dest) as staging:
        fill(staging.path)
        assert staging.path.parent == dest.parent
        assert not dest.exists()
        staging.commit(force=False)
    assert (dest / "config.json").read_text() == "new"
    assert siblings(dest) == []


def test_an_error_leaves_nothing(tmp_path):
    dest = tmp_path / "dest"

    def fail():
        with Staging(dest) as staging:
            fill(staging.path)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_without_commit_nothing_appears(tmp_path):
    with Staging(tmp_path / "dest") as staging:
        fill(staging.path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_replaces_an_old_folder(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(transaction, "_exchange", lambda one, other: False)
    dest = tmp_path / "dest"
    dest.mkdir()
    fill(dest, "old")
    (dest / "more").write_text("old")
    with Staging(dest) as staging:
        fill(staging.path)
        staging.commit(force=True)
    assert [p.name for p in dest.iterdir()] == ["config.json"]
    assert (dest / "config.json").read_text() == "new"
    assert siblings(dest) == []


def test_the_kernel_swaps_here(tmp_path):
    """Otherwise the kill runs below would only ever try the slower way."""
    for name in "ab":
        (tmp_path / name).mkdir()
        fill(tmp_path / name, name)
    assert transaction._exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_text() == "b"
    with pytest.raises(FileNotFoundError):
        transaction._exchange(tmp_path / "a", tmp_path / "absent")


def test_dest_that_fills_up_meanwhile_is_kept(tmp_path):
    dest = tmp_path / "dest"
    with Staging(dest) as staging:
        fill(staging.path)
        dest.mkdir()
        fill(dest, "theirs")
        with pytest.raises(DestinationError, match="meanwhile"):
            staging.commit(force=False)
    assert (dest / "config.json").read_text() == "theirs"
    assert siblings(dest) == []


def test_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "dest").symlink_to("real")
    with Staging(tmp_path / "dest") as staging:
        fill(staging.path)
        staging.commit(force=False)
    assert (tmp_path / "dest").is_symlink()
    assert (tmp_path / "real" / "config.json").read_text() == "new"


def test_leftovers_of_the_living_are_left_alone(tmp_path):
    with Staging(tmp_path / "one") as one, Staging(tmp_path / "two") as two:
        fill(one.path)
        fill(two.path)
        one.commit(force=False)
        two.commit(force=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_what_only_looks_like_a_leftover(tmp_path):
    kept = [".x.eagle-convert-new-12", "x.eagle-convert-new-1-00000000", ".hidden"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".x.eagle-convert-new-1-00000000").write_text("a file of that name")
    with Staging(tmp_path / "dest") as staging:
        staging.commit(force=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, ".x.eagle-convert-new-1-00000000", "dest"])


def test_old_folder_set_aside_by_the_dead_comes_back(tmp_path):
    for dest, aside in (("dest", ".dest.eagle-convert-old-1-00000000"), ("lost", ".lost.eagle-convert-old-1-00000000")):
        (tmp_path / aside).mkdir()
        fill(tmp_path / aside, dest)
    (tmp_path / "dest").mkdir()
    with Staging(tmp_path / "other"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dest", "lost"]
    assert (tmp_path / "lost" / "config.json").read_text() == "lost"


class TestRefused:
    def refuse(self, dest, *texts, **kwargs):
        with pytest.raises(DestinationError) as caught:
            check_destination(dest, **kwargs)
        for text in texts:
            assert text in str(caught.value), str(caught.value)
        assert caught.value.how
        assert caught.value.exit_code == 1

    def test_source_and_dest(self, tmp_path):
        source = tmp_path / "src"
        source.mkdir()
        (tmp_path / "link").symlink_to("src")
        self.refuse(source, "is the folder that is read", sources=[source], force=True)
        self.refuse(tmp_path / "link", "is the folder that is read", sources=[source])
        self.refuse(source / "out", "inside a folder that is read", sources=[source])
        self.refuse(tmp_path / "link" / "a" / "b", "inside a folder that is read", sources=[source])
        self.refuse(tmp_path, "holds what is read", sources=[source], force=True)
        check_destination(tmp_path / "src2", sources=[source])

    def test_occupied(self, tmp_path):
        dest = tmp_path / "dest"
        dest.mkdir()
        check_destination(dest)
        fill(dest)
        self.refuse(dest, "is not empty", "config.json", "--force")
        check_destination(dest, force=True)
        (dest / ".cache").mkdir()
        check_destination(dest, force=True)
        (dest / ".git").mkdir()
        self.refuse(dest, "more than a checkpoint", ".git", force=True)

    def test_a_file(self, tmp_path):
        (tmp_path / "dest").write_text("x")
        self.refuse(tmp_path / "dest", "DEST is a file", force=True)
        self.refuse(tmp_path / "dest" / "x", "is not a folder")
        (tmp_path / "loop").symlink_to("loop")
        self.refuse(tmp_path / "loop", "DEST is a file")

    def test_folders_that_are_never_meant(self, tmp_path, monkeypatch):
        (tmp_path / "home").mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path / "home")
        self.refuse(Path("."), "the current folder", force=True)
        monkeypatch.chdir("/")
        self.refuse(tmp_path / "home", "the home folder", force=True)

    def test_no_space(self, tmp_path):
        self.refuse(tmp_path / "dest", "no space left", str(1 << 62), needed=1 << 62)

    def test_no_permission(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
        self.refuse(tmp_path / "dest", "no permission")

    @pytest.mark.parametrize(("code", "text"), [
        (errno.ENOSPC, "no space left"), (errno.EDQUOT, "no space left"), (errno.EROFS, "no permission"),
        (errno.EBUSY, "give a folder inside it"), (errno.EIO, "could not be written")])
    def test_what_the_system_says(self, tmp_path, monkeypatch, code, text):
        def refuse(*_):
            raise OSError(code, os.strerror(code))

        with Staging(tmp_path / "dest") as staging:
            fill(staging.path)
            monkeypatch.setattr(os, "rename", refuse)
            with pytest.raises(DestinationError) as caught:
                staging.commit(force=False)
        assert text in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def content(dest):
    """The value of a complete folder; fails on any mixture or part."""
    assert sorted(p.name for p in dest.iterdir()) == ["config.json", "model.safetensors"]
    value = json.loads((dest / "config.json").read_text())["value"]
    with open_file(dest / "model.safetensors") as index:
        assert len(index) == TENSORS
        for name in index:
            assert b"".join(index.chunks(name)) == bytes([value]) * SIZE, name
    return value


def kill_at_random(dest, rounds, way, *, fresh, seed=0):
    """Kill a writer ``rounds`` times; returns how often DEST was absent, old, and new (whole, each time)."""
    rng, outcomes = random.Random(seed), Counter()
    for i in range(rounds):
        if not fresh:
            write(str(dest), 0)  # also a next run: it clears what the last kill left
            assert siblings(dest) == []
        child = subprocess.Popen([sys.executable, str(SCRIPT), str(dest), "1", way], stdout=subprocess.PIPE)
        try:
            assert child.stdout.readline() == b"ready\n"
            # One write takes some milliseconds: moments before, in, and after the first swap, and in later ones.
            time.sleep(rng.uniform(0, 0.06 if i % 2 else 0.015))
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        if way == "aside" and not dest.exists():  # killed between the two renames
            with Staging(dest.with_name("other")):  # the next run, of anything beside it
                pass
            outcomes["absent until the next run"] += 1
        outcome = "absent" if not dest.exists() else "old" if content(dest) == 0 else "new"
        outcomes[outcome] += 1
        if fresh and dest.exists():
            for path in dest.iterdir():
                path.unlink()
            dest.rmdir()
    with Staging(dest.with_name("other")):
        pass
    assert siblings(dest) == []
    return outcomes


@pytest.mark.parametrize(("fresh", "way", "possible"), [
    (True, "exchange", {"absent", "new"}), (False, "exchange", {"old", "new"}),
    (False, "aside", {"old", "new", "absent until the next run"})])
def test_killed(tmp_path, fresh, way, possible):
    """20 kills in all: DEST is what it may be; a mixture or a part fails in ``content``."""
    outcomes = kill_at_random(tmp_path / "dest", {True: 8, False: 6}[fresh], way, fresh=fresh, seed=len(way))
    assert outcomes.keys() <= possible


@pytest.mark.nightly
@pytest.mark.parametrize(("fresh", "way", "possible"), [
    (True, "exchange", {"absent", "new"}), (False, "exchange", {"old", "new"}),
    (False, "aside", {"old", "new", "absent until the next run"})])
def test_killed_a_hundred_times(tmp_path, fresh, way, possible):
    """As above, often enough that both ends must be seen (the gap between two renames need not be hit)."""
    outcomes = kill_at_random(tmp_path / "dest", 100, way, fresh=fresh)
    assert possible - {"absent until the next run"} <= outcomes.keys() <= possible
