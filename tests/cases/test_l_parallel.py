"""Section L of the cases: tensor parallel."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures import plant
from tests.builders import checkpoint, write
from tests.run import inspect, run

H = plant.H


@pytest.mark.parametrize(("heads", "kv_heads", "sizes"), [(4, 2, [1, 2]), (6, 3, [1]), (4, 4, [1, 2, 4])])
def test_c91_the_sizes_that_the_shapes_allow(tmp_path, heads, kv_heads, sizes):
    base, values = checkpoint("e3", "rand")
    for part, n in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        values[f"midlayer.self_attn.{part}_proj.weight"] = np.ones((32 * n, 2 * H), np.float16)
    values["midlayer.self_attn.o_proj.weight"] = np.ones((H, 32 * heads), np.float16)
    folder = write(tmp_path / "head", base | {"num_attention_heads": heads, "num_key_value_heads": kv_heads,
                                              "head_dim": 32}, values)
    assert inspect(folder).document["draft"]["tensor_parallel"] == sizes
    assert f"tensor parallel sizes {', '.join(map(str, sizes))}\n" in run("inspect", folder).stdout
