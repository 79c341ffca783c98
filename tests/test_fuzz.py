"""Fuzz: mutated headers, shard indexes, configs and vocabulary tables give typed errors or a sound reading.

Seeded and without a database, so that every run is the same run. Hypothesis draws one number an example, from which
the mutation is made: strategies for whole JSON values would cost more than the code under test. With
``EAGLE_FUZZ_SECONDS`` the same mutations go on for so long from fresh numbers.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from eagle_convert import dialects
from eagle_convert.dialects.compact import to_config
from eagle_convert.errors import EagleConvertError
from eagle_convert.files.safetensors_header import read_header
from eagle_convert.source import Source, open_source
from eagle_convert.tensors import TensorIndex, TensorInfo
from eagle_convert.vocab import check_d2t, plain_d2t
from eagle_runtime.compact import spec_from_compact, tensor_shapes
from tests.dialects.checkpoints import FIXTURES

SECONDS = float(os.environ.get("EAGLE_FUZZ_SECONDS", "0"))
LAYOUTS = (
    "e1-bin", "e1-legacy-vllm-norms", "e1-legacy-vllm-token-map", "e1-megatron", "e1b-speculators-old-layernorms",
    "e3-bin", "e3-automodel", "e3-deep", "e3-fc-norm", "e3-nvidia", "e3-peagle", "e3-speculators", "mtp-deepseek")


def examples(count: int) -> Any:
    """Settings for a seeded run of so many examples."""
    return settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))


class Memory(TensorIndex):
    """An index over shapes and small arrays, without files."""

    def __init__(self, infos: dict[str, TensorInfo], arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.infos, self.arrays = infos, arrays

    def __getitem__(self, name: str) -> TensorInfo:
        return self.infos[name]

    def __iter__(self) -> Any:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def array(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        return self.arrays[name][start:stop]

    def chunks(self, name: str, size: int = 1 << 20) -> Any:
        yield memoryview(self.arrays[name].tobytes())


def loaded(name: str) -> tuple[dict[str, Any], dict[str, TensorInfo], dict[str, np.ndarray]]:
    source = open_source(str(FIXTURES / "layouts" / name))
    with dialects.open_draft(source) as index:
        small = {n: index.array(n) for n in index if n.rpartition(".")[2] in ("d2t", "t2d", "token_map")}
        return source.config or {}, {n: index[n] for n in index}, small


BASES = {name: loaded(name) for name in LAYOUTS}


def read(config: Any, infos: dict[str, TensorInfo], arrays: dict[str, np.ndarray], **hints: Any) -> Any:
    def no_files(file: str) -> Any:
        raise AssertionError(f"nothing but the tensors may be read, not {file}")

    source = Source("x", "x", None, None, ("config.json", "model.safetensors"), config, "config.json",
                    ("model.safetensors",), (), no_files)
    return dialects.read(Memory(infos, arrays), source, **hints)


def sound(reading: Any, infos: dict[str, TensorInfo]) -> None:
    """Every tensor has one place, and a draft's config reads back to the draft."""
    assert sorted([*reading.names.values(), *reading.unused]) == sorted(infos)
    if reading.kind != "draft":
        assert reading.spec is None
        return
    spec = reading.draft()
    config = json.loads(json.dumps(to_config(spec, source=reading.config), allow_nan=False))
    assert spec_from_compact(config, tensor_shapes(spec)) == spec
    assert tensor_shapes(spec).keys() == (reading.names.keys() | reading.created.keys())
    assert (reading.d2t is not None) == spec.reduced_vocabulary


def attempt(call: Callable[[], Any]) -> Any:
    """What the call gives, or None where it raised a typed error that says something."""
    try:
        return call()
    except EagleConvertError as error:
        if not error.what or not error.where:
            raise AssertionError("an error that says nothing") from error
        return None


KEYS = sorted({key for config, _, _ in BASES.values() for key in config} | {
    "rope_scaling", "rope_parameters", "rope_theta", "head_dim", "sliding_window", "layer_types", "mask_token_id",
    "target_hidden_size", "num_aux_hidden_states", "skip_prenorm", "use_sliding_window", "attention_bias", "type",
    "max_sequence_length", "logit_scale", "eagle_fc_bias", "quantization_config", "partial_rotary_factor", "factor",
    "rope_type", "model_type", "hidden_size", "num_attention_heads", "rms_norm_eps", "architectures"})
SCALARS = (None, True, False, *range(-2, 10), 16, 32, 64, 96, 128, 160, 192, 320, 2**31, 10**400, 1e-6, 0.5, 1e300,
           float("inf"), "", "64", "llama3", "linear", "eagle", "eagle3", "LlamaForCausalLM")
NAMES = sorted({name for _, infos, _ in BASES.values() for name in infos} | {
    "", "x", "layers.99999.mlp.up_proj.weight", "layers.7.self_attn.q_proj.weight", "fc_norm.3.weight", "mtp.fc.weight",
    "midlayer.0.x", "a" * 300, "layers.0.mlp.up_proj.qweight", "model.embed_tokens.weight", "\n", "é.weight"})
SIZES = (0, 1, 3, 32, 64, 128, 160, 192, 320, 2**40)
SHARDS = ("model-00001-of-00003.safetensors", "../x.safetensors", "/etc/passwd", "", "missing.safetensors", 3, None,
          "model.safetensors.index.json", "a/../../b")
NUMBERS = st.integers(0, 2**64 - 1)


class Draw(random.Random):
    """Random JSON values and choices."""

    def value(self, depth: int = 0) -> Any:
        kind = self.randrange(8) if depth < 3 else 0
        if kind < 6:
            return self.choice(SCALARS)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.randrange(4))]
        return self.object(depth + 1)

    def object(self, depth: int = 0, least: int = 0) -> dict[str, Any]:
        return {self.choice(KEYS): self.value(depth) for _ in range(self.randrange(least, 4))}

    def shape(self) -> tuple[int, ...]:
        return tuple(self.choice(SIZES) for _ in range(self.randrange(5)))


@seed(1)
@examples(8000)
@given(NUMBERS)
def test_configs(number):
    draw = Draw(number)
    config, infos, arrays = BASES[draw.choice(LAYOUTS)]
    block = draw.choice(("", "", "model", "transformer_layer_config", "eagle_config"))
    inner = {**(config.get(block) or {} if block else config), **draw.object(least=1)}
    config = {**config, block: inner} if block else inner
    if draw.random() < 0.3:
        config.pop(draw.choice(KEYS), None)
    reading = attempt(lambda: read(config, infos, arrays))
    if reading is not None:
        sound(reading, infos)


@seed(2)
@examples(5000)
@given(NUMBERS)
def test_names_and_shapes(number):
    draw = Draw(number)
    config, infos, arrays = BASES[draw.choice(LAYOUTS)]
    infos, arrays = dict(infos), dict(arrays)
    for _ in range(draw.randrange(1, 4)):
        kind, one, other = draw.choice(("drop", "add", "shape", "rename", "prefix")), draw.choice(NAMES), draw.choice(
            NAMES)
        one = draw.choice([one, *infos])
        if kind == "drop":
            infos.pop(one, None)
        elif kind == "rename" and one in infos and other not in infos:
            infos[other] = infos.pop(one)
        elif kind == "prefix":
            infos = {f"module.{n}": info for n, info in infos.items()}
            arrays = {f"module.{n}": array for n, array in arrays.items()}
        elif kind == "add" or one in infos:
            infos[one] = TensorInfo(one, "F16", draw.shape(), 0, "model.safetensors")
    for table in [n for n in infos if n.rpartition(".")[2] in ("d2t", "t2d", "token_map")]:
        held = arrays.get(table)
        if held is not None and held.shape == infos[table].shape:
            continue
        if max(infos[table].shape, default=0) > 1000:
            infos.pop(table)  # a table of that size is more than a test can hold
        else:
            arrays[table] = np.zeros(infos[table].shape, np.int64)
    reading = attempt(lambda: read(config, infos, arrays))
    if reading is not None:
        sound(reading, infos)


@seed(3)
@examples(4000)
@given(NUMBERS)
def test_tables(number):
    draw = Draw(number)
    kind, size = draw.randrange(4), draw.randrange(13)
    values = (draw.sample(range(12), 12) if kind == 0 else list(range(0, size * 5, draw.randrange(1, 40))) if kind == 1
              else [draw.randrange(-3, 330) for _ in range(size)])
    if kind == 3 and values:
        values[-1] = draw.choice((2**63 - 1, -(2**63), 2**31))
    vocab, rows = draw.randrange(1, 331), draw.choice((None, len(values), 5))
    t2d = draw.choice((None, np.array([draw.randrange(3) for _ in range(draw.choice((vocab, 7)))], np.uint8)))
    stored = draw.choice(("offsets", "ids"))
    table = np.array(values, np.int64).astype(draw.choice((np.int64, np.int64, np.int32, np.uint64, np.float32)))
    found = attempt(lambda: check_d2t(table, vocab, t2d=t2d, rows=rows, stored=stored))
    if table.dtype == np.int64 and stored == "offsets" and len(table):  # the quick look agrees, or leaves it to this
        quick = plain_d2t(table.tobytes(), vocab, t2d=None if t2d is None else t2d.tobytes(), rows=rows)
        assert quick is None or (found is not None and quick.describe() == found.describe()
                                 and (quick.identity, quick.evenly) == (found.identity, found.evenly))
    if found is None:
        return
    assert len(set(found.ids.tolist())) == len(found.ids) == len(values)
    assert 0 <= found.ids.min() <= found.ids.max() < vocab
    assert rows in (None, len(values))
    assert found.identity == (found.ids.tolist() == list(range(vocab)))


class Bytes:
    """A file in memory, as a reader of ranges."""

    name = "model.safetensors"

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read_at(self, offset: int, n: int) -> bytes:
        piece = self.data[offset:offset + n]
        assert len(piece) == n, "read beyond the end"
        return piece


@seed(4)
@examples(3500)
@given(NUMBERS)
def test_headers(number):
    draw = Draw(number)
    header: dict[str, Any] = {}
    for name in draw.sample(("a", "b", "c", "__metadata__"), draw.randrange(5)):
        offsets = [draw.randrange(-1, 300) for _ in range(draw.choice((2, 2, 2, 1, 3)))]
        entry = {"dtype": draw.choice(("F16", "BF16", "I64", "F99", None)), "shape": draw.choice(
            ([], [3], [2, 4], draw.value())), "data_offsets": draw.choice((offsets, sorted(offsets), draw.value()))}
        if draw.random() < 0.3:
            entry.pop(draw.choice([*entry]))
        header[name] = draw.choice((entry, entry, entry, draw.value()))
    text = json.dumps(header).encode() + draw.choice((b"", b" ", b"\x00", b"}"))
    length = max(0, len(text) + draw.choice((0, 0, 0, 1, -1, 2**62)))
    attempt(lambda: read_header(Bytes(struct.pack("<Q", length) + text + bytes(draw.randrange(300)))))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    for file in (FIXTURES / "layouts/e1-sharded").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@seed(5)
@examples(500)
@given(number=NUMBERS)
def test_indexes(sharded: Path, number):
    draw = Draw(number)
    index = json.loads((FIXTURES / "layouts/e1-sharded/model.safetensors.index.json").read_text())
    index["weight_map"] |= {draw.choice(NAMES): draw.choice(SHARDS) for _ in range(draw.randrange(3))}
    if draw.random() < 0.3:
        index[draw.choice(("weight_map", "metadata", "x"))] = draw.value()
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))

    def whole() -> None:
        source = open_source(str(sharded))
        with dialects.open_draft(source) as opened:
            sound(dialects.read(opened, source), dict(opened))

    attempt(whole)


if SECONDS:
    @pytest.mark.parametrize("mutate", [test_configs, test_names_and_shapes, test_tables, test_headers])
    def test_for_longer(mutate):
        """An equal share of the time each; the number that broke is in the failure."""
        fresh, until = random.Random(), time.monotonic() + SECONDS / 4
        while time.monotonic() < until:
            number = fresh.getrandbits(64)
            mutate.hypothesis.inner_test(number)
