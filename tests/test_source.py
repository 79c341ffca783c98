"""Local sources: which files are the weights, what lies beside them, and configs that are none."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from eagle_convert.errors import BrokenFileError, ConfigError, EagleConvertError, SourceError, UsageError
from eagle_convert.source import open_source
from eagle_convert.tensors import open_index

ONE = {"fc.weight": np.zeros((2, 4), np.float32)}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "EAGLE-tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 2}')
    return folder


def put(folder, *files, tensors=ONE):
    for file in files:
        save_file(tensors, folder / file)


def test_single_file(folder):
    put(folder, "model.safetensors")
    source = open_source(str(folder))
    assert (source.name, source.path, source.revision) == ("EAGLE-tiny", folder, None)
    assert source.files == ("config.json", "model.safetensors")
    assert source.weight_files == ("model.safetensors",)
    assert source.weight_map is None
    assert source.config == {"hidden_size": 2}
    assert source.config_file == "config.json"
    assert source.config_bytes == source.read_bytes("config.json") == b'{"hidden_size": 2}'
    assert len(source.config_sha256) == 64
    assert source.ignored == ()


def test_a_file_is_a_source_too(folder):
    put(folder, "model.safetensors", "other.safetensors")
    source = open_source(str(folder / "other.safetensors"))
    assert source.weight_files == ("other.safetensors",)
    assert source.name == "EAGLE-tiny"
    assert source.config == {"hidden_size": 2}
    with open_index(source) as index:
        assert list(index) == ["fc.weight"]


def test_name_of_the_current_folder(folder, monkeypatch):
    put(folder, "model.safetensors")
    monkeypatch.chdir(folder)
    assert open_source(".").name == "EAGLE-tiny"


def test_safetensors_before_bin(folder):
    put(folder, "model.safetensors")
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    source = open_source(str(folder))
    assert source.weight_files == ("model.safetensors",)
    assert source.ignored == (("pytorch_model.bin", "a pickle beside model.safetensors, which is read instead"),)


def test_bin_alone(folder):
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    assert open_source(str(folder)).weight_files == ("pytorch_model.bin",)


@pytest.mark.parametrize("file", ["draft.safetensors", "ea_model.bin", "head.gguf"])
def test_a_lone_file_of_another_name(folder, file):
    (folder / file).write_bytes(b"")
    assert open_source(str(folder)).weight_files == (file,)


@pytest.mark.parametrize("files", [("a.safetensors", "b.safetensors"), ("a.gguf", "b.gguf"),
                                   ("a.safetensors.index.json", "b.safetensors.index.json")])
def test_several_that_could_be_meant(folder, files):
    for file in files:
        (folder / file).write_bytes(b"")
    with pytest.raises(SourceError, match="several files") as caught:
        open_source(str(folder))
    assert all(f in caught.value.where for f in files)
    assert f"EAGLE-tiny/{files[0]}" in caught.value.how


def index_json(folder, weight_map, file="model.safetensors.index.json"):
    (folder / file).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_index_names_the_shards(folder):
    put(folder, "m-1.safetensors", "m-2.safetensors", "consolidated.safetensors")
    index_json(folder, {"a": "m-2.safetensors", "b": "m-1.safetensors"})
    source = open_source(str(folder))
    assert source.weight_files == ("m-1.safetensors", "m-2.safetensors")
    assert source.weight_map == {"a": "m-2.safetensors", "b": "m-1.safetensors"}
    assert source.index_file == "model.safetensors.index.json"
    assert source.ignored == (("consolidated.safetensors", "not named by model.safetensors.index.json"),)
    assert open_source(str(folder / "model.safetensors.index.json")).weight_files == source.weight_files


def test_all_missing_shards_are_listed(folder):
    """Case C75."""
    put(folder, "m-1.safetensors")
    index_json(folder, {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-3.safetensors"})
    with pytest.raises(SourceError, match="incomplete download: 2 of 3 shards") as caught:
        open_source(str(folder))
    assert "m-2.safetensors, m-3.safetensors" in caught.value.where


def test_shards_without_an_index(folder):
    put(folder, "model-00001-of-00002.safetensors")
    with pytest.raises(SourceError, match="incomplete download") as caught:
        open_source(str(folder))
    assert "model-00002-of-00002.safetensors" in caught.value.where
    put(folder, "model-00002-of-00002.safetensors", tensors={"b": np.zeros(1)})
    with open_index(open_source(str(folder))) as index:
        assert set(index) == {"fc.weight", "b"}


@pytest.mark.parametrize("escape", ["../outside.safetensors", "sub/../../outside.safetensors", "./x.safetensors",
                                    "/etc/passwd", "..", ".", "", "a//b.safetensors", "x\0.safetensors"])
def test_index_that_climbs_out(folder, escape):
    put(folder.parent, "outside.safetensors")
    index_json(folder, {"a": escape})
    with pytest.raises(EagleConvertError) as caught:
        open_source(str(folder))
    assert "outside of its folder" in caught.value.what
    assert f"'a' -> '{escape}'" in caught.value.where


def test_link_that_leaves_the_folder(folder):
    put(folder.parent, "outside.safetensors")
    (folder / "x.safetensors").symlink_to(folder.parent / "outside.safetensors")
    index_json(folder, {"fc.weight": "x.safetensors"})
    with pytest.raises(SourceError, match="link that leaves its folder") as caught:
        open_source(str(folder))
    assert "'x.safetensors'" in caught.value.where


def test_links_of_the_hub_cache_are_no_escape(tmp_path):
    snapshot = tmp_path / "models--o--n" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--o--n" / "blobs").mkdir()
    put(tmp_path / "models--o--n" / "blobs", "0" * 8)
    (snapshot / "x.safetensors").symlink_to("../../blobs/" + "0" * 8)
    index_json(snapshot, {"fc.weight": "x.safetensors"})
    with open_index(open_source(str(snapshot))) as index:
        assert list(index) == ["fc.weight"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": 3}',
                                  "{}", '{"weight_map": {"a": "x", "a": "y"}}'])
def test_index_that_is_none(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BrokenFileError, match=r"model\.safetensors\.index\.json"):
        open_source(str(folder))


def test_training_dump(folder):
    """Case C11: the head, the target's lm_head as a second module, optimizer and random states."""
    put(folder, "model.safetensors")
    put(folder, "model_1.safetensors", tensors={"weight": np.zeros((320, 64), np.float32)})
    put(folder, "model_2.safetensors", tensors={"a": np.zeros(1), "b": np.zeros(1)})
    (folder / "model_3.safetensors").write_bytes(b"junk")
    for junk in ("optimizer.bin", "random_states_0.pkl", "scheduler.bin"):
        (folder / junk).write_bytes(b"junk")
    source = open_source(str(folder))
    assert source.weight_files == ("model.safetensors",)
    ignored = dict(source.ignored)
    assert ignored["model_1.safetensors"].startswith("a lone `weight` [320, 64]: the target's lm_head")
    assert ignored["model_2.safetensors"] == "a further module of a training dump (2 tensors: a, b)"
    assert "unreadable" in ignored["model_3.safetensors"]
    for junk in ("optimizer.bin", "random_states_0.pkl", "scheduler.bin"):
        assert ignored[junk] == "training state, not weights"


def test_saved_state_takes_the_config_above(tmp_path):
    """Case C72."""
    run = tmp_path / "run"
    for state in ("state_1", "state_2", "state_10"):
        (run / state).mkdir(parents=True)
        put(run / state, "model.safetensors")
    (run / "config.json").write_text('{"hidden_size": 2}')
    source = open_source(str(run / "state_2"))
    assert (source.name, source.config, source.config_file) == ("state_2", {"hidden_size": 2}, "../config.json")
    assert source.read_bytes("../config.json") == source.config_bytes
    assert open_source(str(run / "state_2") + "/").config == {"hidden_size": 2}
    assert open_source(str(run / "state_2" / "model.safetensors")).config == {"hidden_size": 2}
    with pytest.raises(SourceError, match="which of its saved states") as caught:
        open_source(str(run))
    assert "state_1, state_2, state_10" in caught.value.where
    assert "run/state_10" in caught.value.how


def test_other_folders_do_not_take_the_config_above(folder):
    (folder / "sub").mkdir()
    put(folder / "sub", "model.safetensors")
    source = open_source(str(folder / "sub"))
    assert (source.config, source.config_file) == (None, None)


def test_no_config(folder):
    put(folder, "model.safetensors")
    (folder / "config.json").unlink()
    source = open_source(str(folder))
    assert (source.config, source.config_bytes, source.config_sha256) == (None, None, None)


@pytest.mark.parametrize(("raw", "texts"), [
    (b"", ("not JSON", "line 1")),
    (b"hidden_size: 3", ("not JSON",)),
    (b'{"a": 1,}', ("not JSON", "column")),
    (b"[1]", ("not a JSON object", "[1]")),
    (b'"x"', ("not a JSON object",)),
    (b"\xff\xfe{}", ("not UTF-8",)),
    (b'{"a": NaN}', ("NaN",)),
    (b'{"a": {"b": 1, "b": 2}}', ("'b' stands there twice", "1 and 2")),
    (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", ("config.json",)),
    (b'{"a": ' + b"9" * 5000 + b"}", ("config.json",)),
    (b"version https://git-lfs.github.com/spec/v1\n", ("git-lfs pointer",)),
])
def test_configs_that_are_none(folder, raw, texts):
    put(folder, "model.safetensors")
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        open_source(str(folder))
    for text in ("config.json", *texts):
        assert text in str(caught.value), str(caught.value)
    assert caught.value.how


@pytest.mark.parametrize(("raw", "value"), [
    (b'\xef\xbb\xbf{"a": 1}', {"a": 1}), (b'{"a": 1, "a": 1}', {"a": 1}), (b'{"a": Infinity}', {"a": float("inf")})])
def test_configs_that_are_read(folder, raw, value):
    put(folder, "model.safetensors")
    (folder / "config.json").write_bytes(raw)
    assert open_source(str(folder)).config == value


def test_a_config_of_gigabytes(folder):
    put(folder, "model.safetensors")
    with open(folder / "config.json", "wb") as f:
        f.truncate(1 << 30)
    with pytest.raises(ConfigError, match="not a model's config"):
        open_source(str(folder))


def test_not_found_names_the_nearest(folder):
    with pytest.raises(SourceError, match="does not exist") as caught:
        open_source(str(folder.parent / "EAGLE-tinny" / "model.safetensors"))
    assert "'EAGLE-tinny' is not in" in caught.value.where
    assert "did you mean EAGLE-tiny?" in caught.value.how
    with pytest.raises(SourceError, match="does not exist"):
        open_source("EAGLE")


def test_dangling_link(folder):
    (folder.parent / "org").mkdir()
    (folder.parent / "org" / "name").symlink_to("nowhere")
    with pytest.raises(SourceError, match="is a link to nothing"):
        open_source(str(folder.parent / "org" / "name"))


def test_files_of_no_use(folder):
    with pytest.raises(SourceError, match=r"config\.json is not a weight file") as caught:
        open_source(str(folder / "config.json"))
    assert "give the folder" in caught.value.how
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(SourceError, match="not a regular file"):
        open_index(open_source(str(folder)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folder(folder):
    folder.chmod(0)
    try:
        with pytest.raises(SourceError, match="cannot be listed"):
            open_source(str(folder))
    finally:
        folder.chmod(0o700)


def test_listing_that_fails(folder, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SourceError, match="cannot be listed") as caught:
        open_source(str(folder))
    assert "Permission denied" in caught.value.where


class TestHubIds:
    """Which references are hub ids, and what reaches the hub module."""

    @pytest.fixture
    def calls(self, monkeypatch):
        import sys
        import types

        calls = []
        module = types.ModuleType("eagle_convert.hub.source")
        module.open_hub_source = lambda *args: calls.append(args)
        monkeypatch.setitem(sys.modules, "eagle_convert.hub.source", module)
        return calls

    @pytest.mark.parametrize(("ref", "revision", "wanted"), [
        ("org/name", None, ("org/name", None)),
        ("org/name@v1.0", None, ("org/name", "v1.0")),
        ("hf://org/na.me-x_1", None, ("org/na.me-x_1", None)),
        ("hf://org/name@refs/pr/3", None, ("org/name", "refs/pr/3")),
        ("org/name", "abc", ("org/name", "abc")),
        ("org/name@abc", "abc", ("org/name", "abc")),
    ])
    def test_references(self, calls, tmp_path, monkeypatch, ref, revision, wanted):
        monkeypatch.chdir(tmp_path)
        open_source(ref, revision=revision, role="target")
        assert calls[0][:2] == wanted
        assert calls[0][3] == "target"

    def test_what_exists_is_local(self, calls, tmp_path, monkeypatch):
        (tmp_path / "org" / "name").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert open_source("org/name").path is not None
        assert calls == []

    @pytest.mark.parametrize("ref", ["hf://name", "hf://a/b/c", "hf://", "hf://../x", "hf://org/name@"])
    def test_not_an_id(self, calls, ref):
        with pytest.raises(UsageError, match="not a hub id"):
            open_source(ref)
        assert calls == []

    @pytest.mark.parametrize("ref", ["a/b/c", "/org/name", "./org/name", "../org/name", "name"])
    def test_paths_do_not_reach_the_hub(self, calls, ref):
        with pytest.raises(SourceError, match="does not exist"):
            open_source(ref)
        assert calls == []

    def test_two_revisions(self, calls):
        with pytest.raises(UsageError, match="two revisions"):
            open_source("org/name@a", revision="b")

    def test_revision_of_a_local_folder(self, calls, folder):
        with pytest.raises(UsageError, match="--revision is for hub ids"):
            open_source(str(folder), revision="a")
