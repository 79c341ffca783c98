"""``kill -9`` at random moments of a whole ``convert``: DEST is absent, the old one, or the new one, complete."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle_convert.files.transaction import Staging

ROOT = Path(__file__).resolve().parent.parent


def convert(fixtures_dir, dest, *options):
    command = [sys.executable, "-m", "eagle_convert", "convert", fixtures_dir / "plant" / "e1", dest,
               "--target", fixtures_dir / "plant" / "tgt", "--quiet", *options]
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def wait_for_writing(folder, child, before):
    """Until a new hidden sibling shows that DEST is being written, or the process has ended."""
    while child.poll() is None and set(os.listdir(folder)) <= before:
        time.sleep(0.0005)


def kill_conversions(fixtures_dir, tmp_path, rounds):
    """Kill ``rounds`` conversions, in turn into a new DEST and over an old one; returns the outcomes."""
    reference = tmp_path / "reference" / "dest"
    assert convert(fixtures_dir, reference).wait() == 0
    new, old = content(reference), {"config.json": b"old", "pytorch_model.bin": b"old"}
    rng, outcomes = random.Random(rounds), []
    folder = tmp_path / "killed"
    folder.mkdir()
    dest = folder / "dest"
    for i in range(rounds):
        force = i % 2 == 1
        if force:
            dest.mkdir()
            for name, data in old.items():
                (dest / name).write_bytes(data)
        before = set(os.listdir(folder))
        child = convert(fixtures_dir, dest, *(["--force"] if force else []))
        if i % 4 < 3:  # most of the time goes into starting: most kills aim at the writing, the rest anywhere
            wait_for_writing(folder, child, before)
            time.sleep(rng.uniform(0, 0.012))
        else:
            time.sleep(rng.uniform(0, 0.5))
        child.kill()
        child.wait()
        if not dest.exists():
            assert not force, "an old DEST is gone"
            outcomes.append("absent")
        else:
            found = content(dest)
            assert found == new or (force and found == old)
            outcomes.append("new" if found == new else "old")
            for path in dest.iterdir():
                path.unlink()
            dest.rmdir()
    with Staging(folder / "next"):
        pass
    assert os.listdir(folder) == [], "the next run clears what the dead left"
    return outcomes


def test_twenty_kills(fixtures_dir, tmp_path):
    assert len(kill_conversions(fixtures_dir, tmp_path, 20)) == 20


@pytest.mark.nightly
def test_a_hundred_kills_see_every_outcome(fixtures_dir, tmp_path):
    assert set(kill_conversions(fixtures_dir, tmp_path, 100)) == {"absent", "old", "new"}
