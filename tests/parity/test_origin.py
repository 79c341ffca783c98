"""Where the reference comes from when it is not given: the manifest, a sibling, and the digests that prove it."""

from __future__ import annotations

import pytest

from eagle_convert.errors import BrokenFileError, UsageError
from eagle_convert.manifest import FILE, Manifest, Origin
from eagle_convert.parity.origin import default_reference
from eagle_convert.source import open_source
from eagle_convert.tensors import open_index


@pytest.fixture
def pair(tmp_path, fixtures_dir):
    """An official folder and a compact one beside it that names it; returns (compact folder, write manifest)."""
    import shutil

    shutil.copytree(fixtures_dir / "plant" / "e1", tmp_path / "official")
    shutil.copytree(fixtures_dir / "plant" / "e1", tmp_path / "compact")
    with open_index(open_source(str(tmp_path / "official"))) as index:
        digests = {name: index.sha256(name) for name in index}

    def manifest(id="official", revision=None, digests=digests):
        (tmp_path / "compact" / FILE).write_bytes(
            Manifest(Origin(id, revision, digests), None, "eagle", "official").encode())
        return default_reference(open_source(str(tmp_path / "compact")))

    return tmp_path, manifest


def test_a_sibling_with_the_recorded_digests(pair):
    folder, manifest = pair
    assert manifest() == str(folder / "official")


def test_a_hub_id_with_its_commit(pair):
    _, manifest = pair
    assert manifest("org/head", "0123abc") == "hf://org/head@0123abc"


@pytest.mark.parametrize(("id", "says"), [("elsewhere", "looked for elsewhere"), ("../official", "'../official'"),
                                          ("/abs/official", "/abs"), ("..", "'..'"), ("", "''")])
def test_no_such_sibling_asks_for_the_flag(pair, id, says):
    _, manifest = pair
    with pytest.raises(UsageError) as caught:
        manifest(id)
    assert says in caught.value.where
    assert "--reference" in caught.value.how


def test_a_folder_of_that_name_with_other_tensors_is_not_the_source(pair):
    _, manifest = pair
    with pytest.raises(UsageError, match="is not its source") as caught:
        manifest(digests={"fc.weight": "0" * 64})
    assert caught.value.where.startswith("fc.weight")
    with pytest.raises(UsageError) as caught:
        manifest(digests={"gone.weight": "0" * 64})
    assert "no such tensor" in caught.value.where


def test_no_manifest_or_a_broken_one(pair):
    folder, _ = pair
    with pytest.raises(UsageError, match="does not say what it was made from"):
        default_reference(open_source(str(folder / "official")))
    (folder / "compact" / FILE).write_text("{")
    with pytest.raises(BrokenFileError):
        default_reference(open_source(str(folder / "compact")))
