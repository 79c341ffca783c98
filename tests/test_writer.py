"""The written folder: the library's very bytes, proved by reading them back, and nothing when anything fails."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle_convert import writer
from eagle_convert.errors import BrokenFileError, DestinationError
from eagle_convert.files.dtypes import DTYPES
from eagle_convert.source import open_source
from eagle_convert.tensors import open_index
from eagle_convert.writer import OutTensor, write_folder

CODES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def tensors():
    rng = np.random.default_rng(0)
    return {"norm.weight": rng.normal(size=5).astype(np.float32),
            "fc.weight": rng.normal(size=(4, 8)).astype(np.float16), "d2t": np.arange(7),
            "a.mask": np.array([True, False, True]), "empty": np.zeros((0, 3), np.float16),
            "scalar": np.array(2.5, np.float32), 'n"\\\n\u00e9': np.zeros(3, np.uint8)}


def out(name, array, size=7):
    raw = array.tobytes()
    return OutTensor(name, CODES[array.dtype.name], array.shape,
                     lambda: (memoryview(raw)[i:i + size] for i in range(0, len(raw), size)))


def plan_of(arrays, **kwargs):
    return [out(n, a, **kwargs) for n, a in arrays.items()]


def test_same_bytes_as_the_library(tmp_path):
    arrays = tensors()
    save_file(arrays, tmp_path / "theirs", metadata={"format": "pt"})
    theirs = (tmp_path / "theirs").read_bytes()
    result = write_folder(tmp_path / "one", plan_of(arrays), {})
    write_folder(tmp_path / "two", list(reversed(plan_of(arrays, size=100))), {})
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == theirs
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == theirs
    assert result.digests == {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in arrays.items()}
    assert result.nbytes == sum(a.nbytes for a in arrays.values())
    assert result.files == {"model.safetensors": len(theirs)}


def test_every_dtype_is_ordered_as_the_library_does(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    theirs, ours = {}, []
    for i, dtype in enumerate(DTYPES.values()):
        torch_type = getattr(torch, dtype.torch or "-", None)
        if torch_type is None:
            continue
        raw = bytes(range(4 * dtype.bits // 8)) if dtype.code != "BOOL" else b"\0\1\1\0"
        name = f"{'zyx'[i % 3]}{dtype.code}"
        theirs[name] = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(torch_type)
        ours.append(OutTensor(name, dtype.code, (4,), lambda raw=raw: iter([memoryview(raw)])))
    assert len(ours) >= 19
    write_folder(tmp_path / "dest", ours, {})
    assert (tmp_path / "dest" / "model.safetensors").read_bytes() == save(theirs, {"format": "pt"})


def test_no_tensors(tmp_path):
    write_folder(tmp_path / "dest", [], {"config.json": b"{}"})
    assert load_file(tmp_path / "dest" / "model.safetensors") == {}


def test_files_may_state_what_was_written(tmp_path):
    arrays = tensors()

    def files(result):
        return {"eagle_convert.json": json.dumps(result.digests).encode(), "LICENSE": b"text"}

    result = write_folder(tmp_path / "dest", plan_of(arrays), files)
    assert json.loads((tmp_path / "dest" / "eagle_convert.json").read_text()) == result.digests
    assert set(result.files) == {p.name for p in (tmp_path / "dest").iterdir()}
    assert all(size == (tmp_path / "dest" / name).stat().st_size for name, size in result.files.items())


def test_shards(tmp_path):
    arrays = {f"t{i}": np.full((10,), i, np.float32) for i in range(5)} | {"t9": np.zeros(100, np.float32)}
    result = write_folder(tmp_path / "dest", plan_of(arrays), {"config.json": b"{}"}, max_shard_size=85)
    source = open_source(str(tmp_path / "dest"))
    assert source.weight_files == tuple(f"model-0000{i}-of-00004.safetensors" for i in range(1, 5))
    index = json.loads((tmp_path / "dest" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 600}
    assert "model.safetensors.index.json" in result.files
    with open_index(source) as tensor_index:
        assert {n: tensor_index.array(n).tolist() for n in arrays} == {n: a.tolist() for n, a in arrays.items()}
        assert [i.file[6:11] for i in tensor_index.values()] == ["00001", "00001", "00002", "00002", "00003", "00004"]


def test_one_shard_that_fits_is_a_single_file(tmp_path):
    write_folder(tmp_path / "dest", plan_of(tensors()), {}, max_shard_size=1 << 20)
    assert [p.name for p in (tmp_path / "dest").iterdir()] == ["model.safetensors"]


def failing(tmp_path, error, *args, match, **kwargs):
    with pytest.raises(error, match=match):
        write_folder(tmp_path / "dest", *args, **kwargs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("raw", [b"", b"\0" * 15, b"\0" * 17])
def test_a_source_that_gives_another_number_of_bytes(tmp_path, raw):
    plan = [OutTensor("a", "F32", (4,), lambda: iter([memoryview(raw)]))]
    failing(tmp_path, BrokenFileError, plan, {}, match="another number of bytes")


def test_a_disk_that_reads_back_something_else(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(writer.os, "write", lambda fd, data: write(fd, bytes(data).replace(b"\x02", b"\x06")))
    failing(tmp_path, BrokenFileError, plan_of(tensors()), {}, match="reads back different")


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize("every", [1, 1 << 30])
def test_a_disk_that_refuses_the_flush(tmp_path, monkeypatch, call, every):
    """Delayed allocation: the first to hear of a full disk may be a flush, also one that runs beside the copy."""
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "_FLUSH_EVERY", every)
    monkeypatch.setattr(writer.os, call, full)
    failing(tmp_path, DestinationError, plan_of(tensors()), {"config.json": b"{}"}, match="no space left")


def test_flushing_beside_the_copy_changes_nothing(tmp_path, monkeypatch):
    arrays = tensors()
    write_folder(tmp_path / "one", plan_of(arrays), {})
    flushes, fdatasync = [], os.fdatasync
    monkeypatch.setattr(writer, "_FLUSH_EVERY", 16)
    monkeypatch.setattr(writer.os, "fdatasync", lambda fd: flushes.append(fd) or fdatasync(fd))
    write_folder(tmp_path / "two", plan_of(arrays), {})
    assert len(flushes) > 1
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("when", [1, 3, 9])
def test_a_disk_that_fills_up(tmp_path, monkeypatch, when):
    write, calls = os.write, []

    def full(descriptor, data):
        calls.append(1)
        if len(calls) == when:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(writer.os, "write", full)
    failing(tmp_path, DestinationError, plan_of(tensors()), {"config.json": b"{}"}, match="no space left")


def test_a_file_size_limit_is_like_a_full_disk(tmp_path):
    """A real refusal of the kernel, half way through a tensor."""
    code = ("import resource, sys; sys.path.insert(0, '.');"
            "from eagle_convert.writer import OutTensor, write_folder;"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20));"
            "p = memoryview(bytes(1 << 20)); t = OutTensor('a', 'U8', (8 << 20,), lambda: iter([p] * 8));\n"
            f"try: write_folder({str(tmp_path / 'dest')!r}, [t], {{}})\n"
            "except Exception as e: print(type(e).__name__, e.what)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "DestinationError no space left for DEST\n"
    assert list(tmp_path.iterdir()) == []


def test_the_caller_may_refuse_the_finished_folder(tmp_path):
    seen = []

    def verify(folder):
        seen.extend(sorted(p.name for p in folder.iterdir()))
        raise BrokenFileError("no")

    failing(tmp_path, BrokenFileError, plan_of(tensors()), {"config.json": b"{}"}, verify=verify, match="no")
    assert seen == ["config.json", "model.safetensors"]


def test_dest_is_checked_before_anything_is_read(tmp_path):
    def never():
        raise AssertionError("read")
        yield

    plan = [OutTensor("a", "U8", (1,), never)]
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "x").write_text("old")
    with pytest.raises(DestinationError, match="not empty"):
        write_folder(tmp_path / "dest", plan, {})
    with pytest.raises(DestinationError, match="is the folder that is read"):
        write_folder(tmp_path / "dest", plan, {}, force=True, source_paths=[tmp_path / "dest"])
    with pytest.raises(DestinationError, match="no space left"):
        write_folder(tmp_path / "other", [OutTensor("a", "U8", (1 << 47,), never)], {})
    assert (tmp_path / "dest" / "x").read_text() == "old"


@pytest.mark.parametrize("name", ["", "..", "a/b", "model.safetensors"])
def test_files_have_plain_names(tmp_path, name):
    failing(tmp_path, ValueError, plan_of(tensors()), {name: b""}, match="plain new file name")


def test_a_name_twice(tmp_path):
    failing(tmp_path, ValueError, [out("a", np.zeros(1)[:0].astype(np.float32))] * 2, {}, match="stands twice")


def test_force_replaces_the_folder_whole(tmp_path):
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "pytorch_model.bin").write_text("old")
    write_folder(tmp_path / "dest", plan_of(tensors()), {}, force=True)
    assert [p.name for p in (tmp_path / "dest").iterdir()] == ["model.safetensors"]


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        write_folder(tmp_path / "dest", plan_of(tensors()), {})
    finally:
        os.umask(old)
    assert (tmp_path / "dest").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "dest" / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_memory_is_flat(tmp_path):
    save_file({"a": np.zeros(48 << 20, np.uint8)}, tmp_path / "model.safetensors")
    with open_index(open_source(str(tmp_path))) as index:
        buffer = bytearray(1 << 20)
        tracemalloc.start()
        try:
            write_folder(tmp_path / "dest", [OutTensor("a", "U8", (48 << 20,), lambda: index.stream("a", buffer))], {})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 8 << 20
