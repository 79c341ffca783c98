"""Mutated headers, indexes, configs and vocabulary tables through the whole commands: a result or a typed error.

``test_fuzz.py`` mutates more, in memory; here files are written, ``inspect`` and ``convert`` run, no DEST may be left
behind by a refusal, and the runtime must read what is written. Always the same examples; ``make fuzz`` goes on with new
ones for ``EAGLE_FUZZ_SECONDS``.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_convert import EagleConvertError
from eagle_convert.conversion import convert
from eagle_convert.inspection import inspect
from eagle_runtime.loader import view_of_compact
from fixtures.formats import json_bytes, safetensors_bytes, sharded

EXAMPLES = 500  # of each of the four kinds
SECONDS = float(os.environ.get("EAGLE_FUZZ_SECONDS", "0"))
CONVERT_EVERY = 8  # inspect reads all; convert costs more, and refuses by the same code

H, HD, HEADS, KV, I, V, VD = 8, 4, 2, 1, 8, 12, 6
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "intermediate_size": I,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": 1, "vocab_size": V,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu",
    "tie_word_embeddings": False, "bias": False, "torch_dtype": "float16"}


def layer(name: str, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.self_attn.q_proj.weight": (HEADS * HD, columns), f"{name}.self_attn.k_proj.weight": (HD, columns),
            f"{name}.self_attn.v_proj.weight": (HD, columns), f"{name}.self_attn.o_proj.weight": (H, HEADS * HD),
            f"{name}.mlp.gate_proj.weight": (I, H), f"{name}.mlp.up_proj.weight": (I, H),
            f"{name}.mlp.down_proj.weight": (H, I), f"{name}.post_attention_layernorm.weight": (H,)}


def fill(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.sin(np.arange(np.prod(shape), dtype=np.float64) + i).reshape(shape).astype(np.float16)
            for i, (name, shape) in enumerate(shapes.items())}


TABLE = fill({"model.embed_tokens.weight": (V, H), "lm_head.weight": (V, H), "model.norm.weight": (H,)})
E1 = fill({"fc.weight": (H, 2 * H), **layer("layers.0", H)}) | {"embed_tokens.weight":
                                                               TABLE["model.embed_tokens.weight"]}
E3 = fill({"fc.weight": (H, 3 * H), **layer("midlayer", 2 * H), "midlayer.input_layernorm.weight": (H,),
           "midlayer.hidden_norm.weight": (H,), "norm.weight": (H,), "lm_head.weight": (VD, H)})
IDS = np.array([1, 2, 5, 6, 9, 11])
E3 |= {"d2t": IDS - np.arange(VD), "t2d": np.isin(np.arange(V), IDS)}
E3_CONFIG = CONFIG | {"draft_vocab_size": VD}

# Values that have broken readers before.
ODD: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 8, 2**31, 2**63, -2**63, 2**64, 10**400, 1e308, -0.0, 0.5, float("inf"), float("nan"), "", "0", "8",
    "llama3", "dynamic", "F16", "BF16", "I64", "F4", "../x", "/etc/passwd", "\x00", "é", "\ud800", True, False, None,
    [], {}, [None], [[]], [0], [8, 8], [16, 8], [2, 4, 5], [1, 3, 4], [0, 2**62], {"a": {"b": [1]}},
    {"rope_theta": 1e6, "rope_type": "default"}, {"type": "linear", "factor": 2.0}, {"type": "dynamic"},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16}, {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]})
KEYS = (
    *CONFIG, "head_dim", "rope_scaling", "rope_parameters", "eagle_config", "draft_vocab_size", "target_hidden_size",
    "attention_bias", "qkv_bias", "mlp_bias", "model", "transformer_layer_config", "speculators_config",
    "speculators_model_type", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "norm_before_residual",
    "norm_before_fc", "fc_norm", "norm_output", "sliding_window", "layer_types", "logit_scale", "mask_token_id",
    "skip_prenorm", "skip_output_norm", "add_para_norm", "quantization_config", "text_config", "truncated_vocab_size",
    "n_layer", "fc.weight", "lm_head.weight", "__metadata__", "dtype", "shape", "data_offsets", "weight_map", "x")


class Choices:
    """Decisions read off a string of bytes: one cheap draw for hypothesis, which still makes failures small."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, below: int) -> int:
        value = int.from_bytes(self.data[self.at:self.at + 2], "little")
        self.at += 2
        return value % below

    def of(self, options: Any) -> Any:
        return deepcopy(options[self.number(len(options))])


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(p for key, item in inside for p in paths(item, (*at, key)))]


def edited(document: Any, choices: Choices) -> Any:
    """The JSON document with one to four values set, dropped, added or copied to another key."""
    root = [deepcopy(document)]
    for _ in range(1 + choices.number(4)):
        places = [p for p in paths(root) if p]
        path, how = choices.of(places), choices.of(("set", "set", "drop", "add", "copy"))
        holder: Any = root
        for step in path[:-1]:
            holder = holder[step]
        if how == "set":
            holder[path[-1]] = choices.of(ODD)
        elif how == "drop" and len(path) > 1:
            del holder[path[-1]]
        elif how == "copy" and isinstance(root[0], dict):
            root[0][choices.of(KEYS)] = deepcopy(holder[path[-1]])
        elif isinstance(holder[path[-1]], dict):
            holder[path[-1]][choices.of(KEYS)] = choices.of(ODD)
    return root[0]


def bytes_edited(data: bytes, choices: Choices) -> bytes:
    """The bytes with one to three flipped, dropped, inserted, or everything behind cut off."""
    out = bytearray(data)
    for _ in range(1 + choices.number(3)):
        at, byte, how = choices.number(len(out) + 1), choices.number(256), choices.of(("flip", "cut", "drop", "insert"))
        if how == "cut":
            del out[at:]
        elif how == "insert":
            out[at:at] = bytes([byte])
        elif at < len(out) and how == "flip":
            out[at] ^= byte or 1
        elif at < len(out):
            del out[at]
    return bytes(out)


def text_of(value: Any) -> bytes:
    """JSON as Python writes it: with NaN, Infinity and lone surrogates, which a reader meets too."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def with_header(data: bytes, header: Any) -> bytes:
    text, body = text_of(header), data[8 + int.from_bytes(data[:8], "little"):]
    return len(text).to_bytes(8, "little") + text + body


def header_of(data: bytes) -> Any:
    return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])


@pytest.fixture
def bench(tmp_path: Path) -> Callable[[dict[str, bytes]], None]:
    """Takes a folder's files; fails unless every command ends in a result or a typed error without a DEST."""
    target, folder, dest = tmp_path / "target", tmp_path / "head", tmp_path / "dest"
    target.mkdir()
    folder.mkdir()
    (target / "config.json").write_bytes(json_bytes(CONFIG | {"num_hidden_layers": 8}))
    (target / "model.safetensors").write_bytes(safetensors_bytes(TABLE))
    counter = itertools.count()

    def try_(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        refusal = None
        try:
            json.dumps(inspect(str(folder), target=str(target)), allow_nan=False)
        except EagleConvertError as error:
            refusal = error
        assert refusal is None or (refusal.what and (refusal.where or refusal.how))
        if next(counter) % CONVERT_EVERY:
            return
        try:
            convert(str(folder), dest, target=str(target))
        except EagleConvertError:
            assert not dest.exists()
        else:
            view_of_compact(dest)  # what is written, the runtime reads
            shutil.rmtree(dest)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["head", "target"]

    return try_


def fuzz(check: Callable[[Choices], None]) -> None:
    """Run a check on the suite's fixed examples, or, for a quarter of ``EAGLE_FUZZ_SECONDS``, on ever new ones."""
    def run(data: bytes) -> None:
        check(Choices(data))

    quiet: dict[str, Any] = {"deadline": None, "database": None,
                             "suppress_health_check": list(hypothesis.HealthCheck)}
    data = st.binary(min_size=48, max_size=48)
    if not SECONDS:
        settings(max_examples=EXAMPLES, derandomize=True, **quiet)(given(data)(run))()
        return
    end, seed = time.monotonic() + SECONDS / 4, int(time.time())
    while time.monotonic() < end:
        seed += 1
        hypothesis.seed(seed)(settings(max_examples=500, **quiet)(given(data)(run)))()


E1_FILE, E3_FILE = safetensors_bytes(E1), safetensors_bytes(E3)
HEADS_OF = {True: (E3_CONFIG, E3_FILE), False: (CONFIG, E1_FILE)}


def test_headers(bench):
    """Values of the header's JSON, or bytes of its text."""
    def check(choices: Choices) -> None:
        config, data = HEADS_OF[choices.of((True, False))]
        if choices.of((True, False)):
            data = with_header(data, edited(header_of(data), choices))
        else:
            split = 8 + int.from_bytes(data[:8], "little")
            data = bytes_edited(data[:split], choices) + data[split:]
        bench({"config.json": json_bytes(config), "model.safetensors": data})

    fuzz(check)


def test_indexes(bench):
    """The shard index."""
    shards = sharded(E1, 2)
    name = next(n for n in shards if n.endswith(".index.json"))
    index = json.loads(shards[name])

    def check(choices: Choices) -> None:
        as_json = choices.of((True, False))
        data = text_of(edited(index, choices)) if as_json else bytes_edited(shards[name], choices)
        bench({"config.json": json_bytes(CONFIG), **shards, name: data})

    fuzz(check)


def test_configs(bench):
    """The config's values, keys and text."""
    def check(choices: Choices) -> None:
        config, data = HEADS_OF[choices.of((True, False))]
        as_json = choices.of((True, True, True, False))
        text = text_of(edited(config, choices)) if as_json else bytes_edited(json_bytes(config), choices)
        bench({"config.json": text, "model.safetensors": data})

    fuzz(check)


def test_vocabulary_tables(bench):
    """d2t and t2d of any values, lengths, shapes and types."""
    def check(choices: Choices) -> None:
        rows = choices.of((VD, VD, VD, VD, 0, 1, 5, 7, V))
        values = np.resize(E3["d2t"], rows)
        for _ in range(choices.number(4)):
            if rows:
                values[choices.number(rows)] = choices.of((-1, 0, 1, 2, 5, 6, V, 2**31, 2**63 - 1, -2**63))
        values = values.astype(choices.of(("int64", "int64", "int64", "int32", "int8", "bool", "float32")))
        tensors = E3 | {"d2t": values.reshape(choices.of(((-1,), (-1,), (-1,), (1, rows), (rows, 1))))}
        if choices.of((True, False)):
            mask = np.resize(E3["t2d"], choices.of((V, V, V, 0, VD, V + 1)))
            for _ in range(choices.number(3)):
                mask[choices.number(len(mask)) if len(mask) else slice(0)] ^= True
            tensors["t2d"] = mask
        else:
            del tensors["t2d"]
        config = E3_CONFIG | {"draft_vocab_size": choices.of((VD, VD, VD, V, 1, 5))}
        bench({"config.json": json_bytes(config), "model.safetensors": safetensors_bytes(tensors)})

    fuzz(check)
