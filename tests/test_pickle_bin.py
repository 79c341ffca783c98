"""``.bin`` files: the same bytes as safetensors, and nothing in them ever runs."""

import argparse
import collections
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eagle_convert.errors import BrokenFileError, EagleConvertError, SourceError, UnsafePickleError
from eagle_convert.source import open_source
from eagle_convert.tensors import open_file, open_index

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
         torch.int8, torch.uint8, torch.bool, torch.complex64]


def ramp(*shape, dtype=torch.float32):
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape).to(dtype)


def state():
    base = ramp(6, 4)
    tensors = {str(t).split(".")[1]: (ramp(5, 3) % 2 if t == torch.bool else ramp(5, 3)).to(t) for t in TYPES}
    return collections.OrderedDict(
        **tensors, shared_1=base, shared_2=base, transposed=base.t(), rows=base[2:5], columns=base[:, 1:3],
        stepped=base[::2], three=ramp(2, 3, 4).permute(2, 0, 1), scalar=torch.tensor(7.0), empty=torch.empty(0, 4),
        one=ramp(1, 4).t().t(), parameter=torch.nn.Parameter(ramp(3)))


def saved(tmp_path, content, *, legacy=False, name="pytorch_model.bin", **kwargs):
    torch.save(content, tmp_path / name, _use_new_zipfile_serialization=not legacy, **kwargs)
    return tmp_path / name


@pytest.mark.parametrize("legacy", [False, True])
def test_same_bytes_as_safetensors(tmp_path, legacy):
    tensors = state()
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, tmp_path / "model.safetensors")
    with open_file(saved(tmp_path, tensors, legacy=legacy)) as ours, \
            open_file(tmp_path / "model.safetensors") as plain:
        assert set(ours) == set(plain)
        for name in ours:
            assert (ours[name].dtype, ours[name].shape, ours[name].nbytes) == \
                (plain[name].dtype, plain[name].shape, plain[name].nbytes), name
            assert ours.sha256(name) == plain.sha256(name), name
            np.testing.assert_array_equal(ours.array(name), plain.array(name), err_msg=name)
            np.testing.assert_array_equal(ours.array(name, 1, 3) if plain[name].shape else 0,
                                          plain.array(name, 1, 3) if plain[name].shape else 0, err_msg=name)
            assert ours.torch(name).equal(tensors[name].detach()), name
            assert ours.array(name).flags.c_contiguous, name


def test_types_that_only_newer_torch_saves(tmp_path):
    tensors = {"f8": ramp(4).to(torch.float8_e4m3fn), "u4": ramp(4).to(torch.uint32),
               "t": ramp(2, 4).to(torch.float8_e5m2).t()}
    with open_file(saved(tmp_path, tensors)) as index:
        assert [i.dtype for i in index.values()] == ["F8_E4M3", "U32", "F8_E5M2"]
        assert index.to_float32("f8").tolist() == [0, 1, 2, 3]
        assert index.array("u4").tolist() == [0, 1, 2, 3]
        assert index.to_float32("t").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol(tmp_path, protocol):
    with open_file(saved(tmp_path, state(), pickle_protocol=protocol)) as index:
        assert index.array("rows").tolist() == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def test_reading_needs_no_torch(tmp_path):
    saved(tmp_path, state())
    code = ("import sys; from eagle_convert.tensors import open_file;"
            f"i = open_file({str(tmp_path / 'pytorch_model.bin')!r}); [i.sha256(n) for n in i];"
            "assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("key", ["state_dict", "model", "module", "model_state_dict"])
def test_one_wrapper_is_looked_through(tmp_path, key):
    content = {key: {"fc.weight": ramp(2)}, "epoch": 3, "optimizer": {"state": {0: {"step": ramp(1)}}}}
    with open_file(saved(tmp_path, content)) as index:
        assert list(index) == ["fc.weight"]
        assert index.skipped == {"pytorch_model.bin": ("epoch", "optimizer")}


def test_plain_values_beside_tensors_are_named(tmp_path):
    with open_file(saved(tmp_path, {"a": ramp(2), "epoch": 3, "lr": [0.1], "name": "x"})) as index:
        assert list(index) == ["a"]
        assert index.skipped["pytorch_model.bin"] == ("epoch", "lr", "name")


def test_a_bare_tensor(tmp_path):
    with open_file(saved(tmp_path, torch.tensor([3, 1]), name="token_map.pt")) as index:
        assert index.array("tensor").tolist() == [3, 1]


def test_module_state_dict_with_its_metadata(tmp_path):
    with open_file(saved(tmp_path, torch.nn.Linear(3, 2).state_dict())) as index:
        assert {n: i.shape for n, i in index.items()} == {"weight": (2, 3), "bias": (2,)}


def test_shards(tmp_path):
    saved(tmp_path, {"a": ramp(2)}, name="pytorch_model-00001-of-00002.bin")
    saved(tmp_path, {"b": ramp(3)}, name="pytorch_model-00002-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        '{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}')
    with open_index(open_source(str(tmp_path))) as index:
        assert {n: i.file[14:19] for n, i in index.items()} == {"a": "00001", "b": "00002"}
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(SourceError, match="incomplete download") as caught:
        open_source(str(tmp_path))
    assert "pytorch_model-00002-of-00002.bin" in caught.value.where


class Bomb:
    """Runs a command when it is unpickled the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def refuse_pickle(path, *names):
    with pytest.raises(UnsafePickleError) as caught:
        open_file(path)
    for text in (*names, "NOT executed", path.name):
        assert text in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("legacy", [False, True])
def test_foreign_class_is_named(tmp_path, legacy):
    """Case C73: a training namespace in the file."""
    refuse_pickle(saved(tmp_path, {"a": ramp(2), "args": argparse.Namespace(lr=1)}, legacy=legacy),
                  "`argparse.Namespace`")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_runs(tmp_path, legacy, protocol):
    """Case C73: the same content runs its command under the ordinary unpickler, so the test can fail."""
    proof = tmp_path / "PWNED"
    pickle.loads(pickle.dumps(Bomb(proof)))
    assert proof.exists()
    proof.unlink()
    path = saved(tmp_path, {"a": ramp(2), "x": Bomb(proof)}, legacy=legacy, pickle_protocol=protocol)
    refuse_pickle(path, "system`")
    refuse_pickle(path, "`posix.system`" if os.name == "posix" else "system")
    assert not proof.exists()


def test_all_foreign_names_are_listed(tmp_path):
    content = {"a": ramp(2), "args": argparse.Namespace(), "x": Bomb("y"), "np": np.float64(1)}
    refuse_pickle(saved(tmp_path, content), "`argparse.Namespace`", "`posix.system`", "numpy")


def zip_with(path, pickle_bytes, storages=(b"\0" * 8,), **more):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", pickle_bytes)
        for i, data in enumerate(storages):
            z.writestr(f"archive/data/{i}", data)
        for name, data in more.items():
            z.writestr(f"archive/{name}", data)
    return path


@pytest.mark.parametrize("code", [
    b"cos\nsystem\n(S'touch PWNED'\ntR.",  # protocol 0
    b"(S'touch PWNED'\nios\nsystem\n.",  # INST
    b"(cos\nsystem\nS'touch PWNED'\no.",  # OBJ
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",  # STACK_GLOBAL
    b"\x80\x02cos\nsystem\n)\x81.",  # NEWOBJ
    b"\x80\x04cos\nsystem\n)}\x92.",  # NEWOBJ_EX
    b"\x80\x02cbuiltins\neval\nX\x01\0\0\0x\x85R0}.",  # result thrown away
    b"\x80\x02cbuiltins\neval\n\x82\x01.",  # then an opcode that is not taken
])
@pytest.mark.parametrize("plain", [False, True])
def test_opcodes_that_call(tmp_path, code, plain, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    if plain:
        if not code.startswith(b"\x80"):
            code = b"\x80\x02" + code
        path.write_bytes(code)
    else:
        zip_with(path, code)
    refuse_pickle(path, "`os.system`" if b"os\nsystem" in code or b"\x02os" in code else "`builtins.eval`")
    assert not (tmp_path / "PWNED").exists()


def tensor_pickle(key="0", elements=2, offset=0, shape=(2,), stride=(1,), kind="FloatStorage"):
    """A state dict {a: tensor} as torch.save would write it, with whatever numbers are wanted."""
    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()

    def number(n):
        raw = n.to_bytes(9, "little", signed=True)
        return b"\x8a\x09" + raw

    def numbers(ns):
        return b"(" + b"".join(map(number, ns)) + b"t"

    return (b"\x80\x02}" + text("a") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\n"
            + kind.encode() + b"\n" + text(key) + text("cpu") + number(elements) + b"tQ" + number(offset)
            + numbers(shape) + numbers(stride) + b"\x89ccollections\nOrderedDict\n)RtRs.")


def broken(path, *texts):
    with pytest.raises(BrokenFileError) as caught:
        open_file(path)
    assert not isinstance(caught.value, UnsafePickleError)
    for text in (path.name, *texts):
        assert text in str(caught.value), str(caught.value)


def test_the_hand_made_pickle_is_a_good_one(tmp_path):
    path = zip_with(tmp_path / "pytorch_model.bin", tensor_pickle(), [struct.pack("<2f", 1, 2)], version=b"3\n")
    with open_file(path) as index:
        assert index.array("a").tolist() == [1, 2]


@pytest.mark.parametrize(("change", "texts"), [
    ({"offset": 1}, ("'a'", "leaves its storage of 8 bytes")),
    ({"offset": -1}, ("'a'", "cannot be")),
    ({"stride": (-1,)}, ("cannot be",)),
    ({"shape": (-2,)}, ("cannot be",)),
    ({"shape": (3,)}, ("leaves its storage",)),
    ({"shape": (1 << 60,), "stride": (0,)}, ("leaves its storage",)),
    ({"shape": (2,), "stride": (1 << 60,)}, ("leaves its storage",)),
    ({"shape": (2, 2)}, ("damaged",)),
    ({"elements": 3}, ("has 8 bytes, 12 expected",)),
    ({"elements": -1}, ("damaged",)),
    ({"key": "7"}, ("storage 7 is not in the file",)),
    ({"kind": "QInt8Storage"}, ("QInt8Storage",)),
    ({"kind": "ComplexDoubleStorage"}, ("ComplexDoubleStorage",)),
])
def test_views_out_of_their_storage(tmp_path, change, texts):
    path = zip_with(tmp_path / "pytorch_model.bin", tensor_pickle(**change))
    broken(path, *texts)


def test_compressed_entries(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("archive/data.pkl", tensor_pickle(elements=1 << 22, shape=(1 << 22,)))
        z.writestr("archive/data/0", b"\0" * (1 << 24))
    assert path.stat().st_size < 1 << 16  # a bomb
    broken(path, "compressed")


@pytest.mark.parametrize(("more", "texts"), [
    ({"byteorder": b"big"}, ("big-endian",)),
    ({"constants.pkl": b""}, ("TorchScript",)),
    ({"sub/data.pkl": b""}, ("2 entries data.pkl",)),
])
def test_other_archives(tmp_path, more, texts):
    broken(zip_with(tmp_path / "pytorch_model.bin", tensor_pickle(), **more), *texts)


def test_zip_without_a_pickle(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("x", b"y")
    broken(path, "0 entries data.pkl")


def test_directory_that_points_elsewhere(tmp_path):
    path = zip_with(tmp_path / "pytorch_model.bin", tensor_pickle())
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02")  # the directory's entry of data/0: its local header's offset at +42
    for offset, text in ((0, "overlap"), (5, "not where"), (1 << 30, "shorter")):
        raw[at + 42:at + 46] = struct.pack("<I", offset)
        path.write_bytes(raw)
        broken(path, text)


@pytest.mark.parametrize(("head", "text"), [
    (b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"), (b"<html>", "web page"),
    (b"\x10\0\0\0\0\0\0\0{}" + b" " * 30, "is a safetensors file"), (b"junk" * 9, "not a file of torch.save"),
    (b"\x80\x02}.", "not one that torch.save wrote"), (b"\x80", "damaged"),
    (b"\x80\x02\x8b\xff\xff\xff\x7f", "damaged"), (b"\x80\x02r\xff\xff\xff\xff.", "damaged"),
])
def test_files_of_other_kinds(tmp_path, head, text):
    (tmp_path / "pytorch_model.bin").write_bytes(head)
    broken(tmp_path / "pytorch_model.bin", text)


@pytest.mark.parametrize("content", [
    {"a": {"b": ramp(2)}}, [ramp(2)], {}, {"state_dict": {"a": ramp(1)}, "model": {"a": ramp(1)}},
    {"a": ramp(1), "more": {"b": ramp(2)}}, {3: ramp(1)}, "text",
])
def test_content_that_is_no_state_dict(tmp_path, content):
    broken(saved(tmp_path, content), "is not a state dict")


@pytest.mark.parametrize("legacy", [False, True])
def test_truncated_anywhere_is_a_typed_error(tmp_path, legacy):
    path = saved(tmp_path, {"a": ramp(3), "b": ramp(2, 2).t()}, legacy=legacy)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(EagleConvertError):
            open_file(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_flipped_bytes_give_typed_errors_or_tensors(tmp_path, legacy):
    path = saved(tmp_path, {"a": ramp(3), "b": ramp(2, 2).t()}, legacy=legacy)
    whole = path.read_bytes()
    refused = 0
    rng = np.random.default_rng(0)
    for _ in range(600):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw), size=2):
            raw[at] = rng.integers(0, 256)
        path.write_bytes(raw)
        try:
            with open_file(path) as index:
                for name in index:
                    index.array(name)
        except EagleConvertError:
            refused += 1
    assert refused > 50


def test_deep_nesting_does_not_overrun_the_stack(tmp_path):
    deep = b"\x80\x02}" + b"(" * 100_000 + b"t" * 100_000 + b"K\x01s."  # as a key: hashing it would recurse
    broken(zip_with(tmp_path / "pytorch_model.bin", deep), "no tensors")


def test_huge_pickle_is_not_read(tmp_path):
    broken(zip_with(tmp_path / "pytorch_model.bin", b"\0" * (64 << 20 | 1)), "at most")


def test_tensor_of_another_endianness_in_legacy(tmp_path):
    path = saved(tmp_path, {"a": ramp(3)}, legacy=True)
    raw = path.read_bytes()
    at = raw.index(b"little_endian") + len(b"little_endian")
    at = raw.index(b"\x88", at)
    path.write_bytes(raw[:at] + b"\x89" + raw[at + 1:])
    broken(path, "big-endian")


def test_stream_is_a_file_like_any_other():
    """What zipfile relies on: seek from all three ends, reading over the end."""
    from eagle_convert.files.pickle_bin import _Raw
    from eagle_convert.files.ranges import RangeReader

    class Bytes(RangeReader):
        name, size = "x", 10

        def read_at(self, offset, length):
            self.check_range(offset, length)
            return bytes(range(10))[offset:offset + length]

    raw = io.BufferedReader(_Raw(Bytes(), 8))
    raw.seek(-2, 2)
    assert raw.read() == b"\6\7"
    assert raw.read() == b""
    raw.seek(1)
    raw.seek(1, 1)
    assert raw.read(2) == b"\2\3"
