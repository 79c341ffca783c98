"""The header parser takes what the safetensors library writes and refuses everything else by name."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_convert.errors import BrokenFileError
from eagle_convert.files.ranges import LocalFile
from eagle_convert.files.safetensors_header import read_header


def file_of(tmp_path, header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def parse(path):
    return read_header(LocalFile(path))


def refused(path, *texts):
    with pytest.raises(BrokenFileError) as caught:
        parse(path)
    for text in ("model.safetensors", *texts):
        assert text in str(caught.value), str(caught.value)
    assert caught.value.how


def one(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


def test_reads_what_the_library_writes(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"b": np.ones((2, 3), np.float16), "a": np.zeros((), np.int64), "e": np.zeros((0, 4), np.float32)},
              path, metadata={"format": "pt"})
    header = parse(path)
    assert header.metadata == {"format": "pt"}
    assert {n: (e.dtype, e.shape, e.end - e.start) for n, e in header.entries.items()} == {
        "a": ("I64", (), 8), "b": ("F16", (2, 3), 12), "e": ("F32", (0, 4), 0)}


@pytest.mark.parametrize("more", [{}, {"__metadata__": None}, {"__metadata__": {}}])
def test_metadata_may_be_missing(tmp_path, more):
    """Case C78: files without metadata cannot be loaded elsewhere; here they are."""
    assert parse(file_of(tmp_path, {**more, **one()}, b"\0" * 8)).metadata == {}


def test_trailing_spaces_pad_the_header(tmp_path):
    assert "a" in parse(file_of(tmp_path, json.dumps(one()).encode() + b"   ", b"\0" * 8)).entries


@pytest.mark.parametrize(("content", "texts"), [
    (b"", ("is empty", "download")),
    (b"\x01\x02\x03", ("is not a safetensors file", "3 bytes")),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n", ("git-lfs pointer", "git lfs pull")),
    (b"<!DOCTYPE html><html>" + b" " * 50, ("web page",)),
    (b"PK\x03\x04" + b"\0" * 60, ("zip archive", "pytorch_model.bin")),
    (b"\x80\x02}q\x00." + b"\0" * 60, ("is a pickle",)),
    (b"GGUF\x03\0\0\0" + b"\0" * 60, ("GGUF",)),
    (struct.pack("<Q", 1 << 60) + b"{}", (str(1 << 60), "header")),
    (struct.pack("<Q", 0) + b"\0" * 8, ("is not a safetensors file",)),
    (struct.pack("<Q", 500) + b"{}", ("truncated inside its header", "508", "10")),
    (struct.pack("<Q", 4) + b"[{}]", ("is not a safetensors file",)),
])
def test_files_of_other_kinds(tmp_path, content, texts):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(path, *texts)


@pytest.mark.parametrize(("header", "data", "texts"), [
    (b"{\"a\": \xff\xfe}", b"", ("not UTF-8",)),
    (b"{\"a\": }", b"", ("not JSON",)),
    (b"{" + b"\"a\":{" * 100_000, b"", ("header",)),
    (b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
     b"\0" * 4, ("'a' stands there twice",)),
    ({"__metadata__": {"format": 1}, **one()}, b"\0" * 8, ("metadata",)),
    ({"a": 5}, b"", ("'a'", "needs dtype, shape and data_offsets")),
    (one(dtype="F33"), b"\0" * 8, ("'a'", "F33")),
    (one(dtype=["F32"]), b"\0" * 8, ("needs one of the dtypes",)),
    (one(shape=(3,)), b"\0" * 8, ("needs 12 bytes, found 8",)),
    (one(shape=(-2,)), b"\0" * 8, ("non-negative sizes",)),
    (one(shape=(True, 2)), b"\0" * 8, ("non-negative sizes",)),
    (one(shape=(1 << 62, 1 << 62)), b"\0" * 8, ("non-negative sizes",)),
    (one(shape=(2.0,)), b"\0" * 8, ("non-negative sizes",)),
    (one(offsets=(8, 0)), b"\0" * 8, ("in order",)),
    (one(offsets=(-8, 0)), b"\0" * 8, ("non-negative data_offsets",)),
    (one(offsets=(0, 8, 9)), b"\0" * 8, ("two non-negative",)),
    (one(dtype="F4", shape=(3,), offsets=(0, 1)), b"\0", ("a whole number of bytes",)),
    (one(), b"\0" * 7, ("truncated", "claims more than the file has")),
    (one(), b"\0" * 9, ("belong to no tensor",)),
    (one(offsets=(4, 12)), b"\0" * 12, ("leave a hole", "'a' starts at data byte 4")),
    ({**one(), "b": one(offsets=(4, 12))["a"]}, b"\0" * 12, ("overlap", "'b' starts at data byte 4")),
    ({**one(), "b": one(offsets=(12, 20))["a"]}, b"\0" * 20, ("leave a hole", "'a' ends at 8")),
    (one(offsets=(1 << 40, (1 << 40) + 8)), b"\0" * 8, ("hole",)),
])
def test_headers_that_lie(tmp_path, header, data, texts):
    refused(file_of(tmp_path, header, data), *texts)


def test_a_number_with_thousands_of_digits(tmp_path):
    raw = b'{"a": {"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'
    refused(file_of(tmp_path, raw, b"\0" * 8))


def test_empty_table(tmp_path):
    assert parse(file_of(tmp_path, {})).entries == {}
