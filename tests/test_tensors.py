"""The index over safetensors: every type, every way to read, shards against their index."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_convert.errors import BrokenFileError, EagleConvertError, SourceError
from eagle_convert.files.dtypes import DTYPES
from eagle_convert.source import open_source
from eagle_convert.tensors import open_file, open_index


def ramp(*shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape).astype(dtype)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    save_file({"w": ramp(7, 3), "h": ramp(5, 2, dtype=np.float16), "i": ramp(4, dtype=np.int64),
               "s": np.array(3.0, np.float32), "e": np.zeros((0, 4), np.float32), "b": np.array([True, False])},
              folder / "model.safetensors")
    return folder


def test_infos_come_from_the_header(folder):
    with open_index(open_source(str(folder))) as index:
        assert index["h"].dtype == "F16"
        assert index["h"].shape == (5, 2)
        assert (index["h"].nbytes, index["h"].elements, index["h"].file) == (20, 10, "model.safetensors")
        assert set(index) == {"w", "h", "i", "s", "e", "b"}
        assert index.nbytes == 7 * 3 * 4 + 20 + 32 + 4 + 0 + 2


def test_rows(folder):
    with open_index(open_source(str(folder))) as index:
        np.testing.assert_array_equal(index.array("w"), ramp(7, 3))
        np.testing.assert_array_equal(index.array("w", 2, 5), ramp(7, 3)[2:5])
        np.testing.assert_array_equal(index.array("w", 5, 99), ramp(7, 3)[5:])
        assert index.array("w", 3, 3).shape == (0, 3)
        assert index.array("e").shape == (0, 4)
        assert index.array("s").shape == ()
        assert index.array("b").tolist() == [True, False]
        assert index.to_float32("h").dtype == np.float32
        index.array("w")[0] = 1  # the caller owns it


def test_chunks_and_stream_give_the_raw_bytes(folder):
    raw = ramp(7, 3).tobytes()
    with open_index(open_source(str(folder))) as index:
        pieces = list(index.chunks("w", 10))
        assert [len(p) for p in pieces] == [10] * 8 + [4]
        assert b"".join(pieces) == raw
        buffer = bytearray(16)
        assert b"".join(bytes(p) for p in index.stream("w", buffer)) == raw
        assert list(index.chunks("e")) == []
        assert index.sha256("w") == hashlib.sha256(raw).hexdigest()
        assert index.sha256("e") == hashlib.sha256(b"").hexdigest()


def test_every_dtype_is_read_and_given_to_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tensors = {}
    for dtype in DTYPES.values():
        torch_type = getattr(torch, dtype.torch or "-", None)
        if torch_type is not None and dtype.bits >= 8:
            raw = torch.arange(8 * dtype.bits // 8 * 2, dtype=torch.uint8)
            tensors[dtype.code] = (raw % 2 if dtype.code == "BOOL" else raw).view(torch_type).reshape(8, 2)
    assert len(tensors) >= 18
    save_torch(tensors, tmp_path / "model.safetensors")
    with open_file(tmp_path / "model.safetensors") as index:
        for code, tensor in tensors.items():
            assert index[code].dtype == code
            raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            assert b"".join(index.chunks(code)) == raw
            assert index.array(code, 2, 4).tobytes() == raw[len(raw) // 4:len(raw) // 2]
            got = index.torch(code)
            assert got.dtype == tensor.dtype
            assert got.view(torch.uint8).equal(tensor.view(torch.uint8))
            if DTYPES[code].is_float:
                np.testing.assert_array_equal(index.to_float32(code), tensor.to(torch.float32).numpy())


def test_integers_have_no_float_reading(folder):
    with open_index(open_source(str(folder))) as index, pytest.raises(BrokenFileError, match="holds no floats"):
        index.to_float32("i")


def test_packed_rows(tmp_path):
    raw = json.dumps({"a": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]},
                      "odd": {"dtype": "F4", "shape": [2, 3], "data_offsets": [6, 9]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(range(9)))
    with open_file(tmp_path / "model.safetensors") as index:
        assert index.array("a", 1, 3).tolist() == [[2, 3], [4, 5]]
        assert b"".join(index.chunks("odd")) == b"\6\7\10"
        with pytest.raises(BrokenFileError, match="do not end on a byte"):
            index.array("odd")


def shards(folder, weight_map, **files):
    folder.mkdir(exist_ok=True)
    for file, tensors in files.items():
        save_file(tensors, folder / f"{file}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return open_source(str(folder))


def test_shards_make_one_index(tmp_path):
    source = shards(tmp_path / "t", {"a": "x.safetensors", "b": "y.safetensors"}, x={"a": ramp(2)}, y={"b": ramp(3)})
    with open_index(source) as index:
        assert [(i.name, i.file) for i in index.values()] == [("a", "x.safetensors"), ("b", "y.safetensors")]
    with open_index(source, ["y.safetensors"]) as index:
        assert list(index) == ["b"]


@pytest.mark.parametrize(("weight_map", "texts"), [
    ({"a": "x.safetensors", "b": "y.safetensors", "c": "y.safetensors"}, ("lacks a tensor", "'c' -> y.safetensors")),
    ({"a": "x.safetensors", "zz": "y.safetensors"}, ("y.safetensors", "'zz'")),
    ({"a": "y.safetensors", "b": "x.safetensors"}, ("'a'", "y.safetensors")),
])
def test_index_and_shards_disagree(tmp_path, weight_map, texts):
    source = shards(tmp_path / "t", weight_map, x={"a": ramp(2)}, y={"b": ramp(3)})
    with pytest.raises(BrokenFileError) as caught:
        open_index(source)
    assert all(text in str(caught.value) for text in texts), str(caught.value)


def test_a_shard_holds_more_than_the_index_says(tmp_path):
    source = shards(tmp_path / "t", {"a": "x.safetensors"}, x={"a": ramp(2), "b": ramp(3)})
    with pytest.raises(BrokenFileError, match="does not list") as caught:
        open_index(source)
    assert "'b'" in caught.value.where


def test_a_tensor_in_two_shards(tmp_path):
    source = shards(tmp_path / "t", {"a": "x.safetensors", "b": "y.safetensors"},
                    x={"a": ramp(2)}, y={"b": ramp(3), "a": ramp(2)})
    with pytest.raises(BrokenFileError, match="'a' is in two files"):
        open_index(source)


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SourceError, match="holds no weights") as caught:
        open_index(open_source(str(tmp_path)))
    assert "config.json" in caught.value.where


def test_a_file_that_shrinks_while_it_is_read(folder):
    with open_index(open_source(str(folder))) as index:
        with open(folder / "model.safetensors", "r+b") as f:
            f.truncate(300)
        with pytest.raises(BrokenFileError, match="became shorter"):
            index.array("w")


def test_every_single_byte_cut_is_a_typed_error(folder):
    whole = (folder / "model.safetensors").read_bytes()
    for size in range(0, len(whole), 7):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(EagleConvertError):
            open_index(open_source(str(folder)))


def test_torch_stays_out(folder):
    code = ("import sys; from eagle_convert.source import open_source; from eagle_convert.tensors import open_index;"
            f"i = open_index(open_source({str(folder)!r})); i.sha256('w'); i.to_float32('h');"
            "assert not {'torch', 'safetensors', 'huggingface_hub'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)
