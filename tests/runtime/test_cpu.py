"""Products that depend on the CPU's maker: the same numbers by every route, each taken where it is the quickest."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from eagle_runtime import cpu, layers
from eagle_runtime.config import TreeShape
from eagle_runtime.engine import SpeculativeEngine
from eagle_runtime.layers import Linear
from tests.runtime.pairs import pair

HAS_MKL = torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")
needs_mkl = pytest.mark.skipif(not HAS_MKL, reason="this torch is built without MKL")


@pytest.fixture
def intel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "maker", lambda: "intel")
    monkeypatch.setattr(layers, "LARGE", 1)


@pytest.mark.parametrize(("text", "maker"), [
    ("vendor_id\t: GenuineIntel\n", "intel"), ("vendor_id\t: AuthenticAMD\n", "amd"), ("Processor: ARMv8\n", "")])
def test_the_maker_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch, text: str, maker: str) -> None:
    cpu.maker.cache_clear()
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert cpu.maker() == maker
    cpu.maker.cache_clear()


def test_without_a_proc_file_the_platform_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: Path) -> str:
        raise FileNotFoundError(self)

    cpu.maker.cache_clear()
    monkeypatch.setattr(Path, "read_text", absent)
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel")
    assert cpu.maker() == "intel"
    cpu.maker.cache_clear()


@needs_mkl
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_for_so_many_rows_gives_the_same_product(intel: None, bias: bool) -> None:
    weight, offset = torch.randn(96, 64), torch.randn(96) if bias else None
    plain = Linear(weight, offset, pack=True)
    fitted = plain.for_rows(24)
    assert fitted is not plain
    assert fitted._reordered is not None
    for lanes, rows in ((1, 24), (2, 12), (1, 23), (1, 1), (3, 24)):
        x = torch.randn(lanes, rows, 64)
        torch.testing.assert_close(fitted(x), F.linear(x, weight, offset), atol=1e-4, rtol=0)
    assert torch.equal(fitted.weight, weight)
    assert plain._reordered is None


def test_elsewhere_a_weight_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGE", 1)
    monkeypatch.setattr(cpu, "maker", lambda: "amd")
    packed = Linear(torch.randn(96, 64), pack=True)
    assert packed.for_rows(60) is packed
    plain = Linear(torch.randn(96, 64))
    monkeypatch.setattr(cpu, "maker", lambda: "intel")
    assert plain.for_rows(60) is plain


def test_a_large_weight_stays_as_it_is_on_an_intel_cpu_too(intel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Linear(torch.randn(96, 64), pack=True)
    monkeypatch.setattr(layers, "LARGE", 96 * 64 + 1)  # and a tiny one
    assert packed.for_rows(60) is packed
    assert not cpu.prefers_mkl(5, 3072 * 576)
    assert not cpu.prefers_mkl(60, 49152 * 576)


@needs_mkl
@pytest.mark.parametrize(("lanes", "runner"), [(1, "eager"), (2, "eager"), (1, "compiled")])
def test_an_engine_says_the_same_by_every_route(intel: None, monkeypatch: pytest.MonkeyPatch, lanes: int,
                                                runner: str) -> None:
    target, draft = pair("rand", "e1", pack=True)
    prompts = [[5, 9, 17], [3, 4, 8, 11, 2]]
    shape = TreeShape.dynamic(8, 2, 3)  # 8 nodes: enough rows for MKL
    fitted = SpeculativeEngine(target, draft, shape, lanes=lanes, runner=runner)
    assert fitted._verifier is not target
    assert fitted._verifier.blocks[0].mlp.down._reordered is not None  # type: ignore[attr-defined]
    assert target.blocks[0].mlp.down._reordered is None  # type: ignore[attr-defined]
    assert fitted._drafter.blocks[0].mlp.down._reordered is not None  # type: ignore[union-attr]
    assert draft.blocks[0].mlp.down._reordered is None  # type: ignore[union-attr]
    ours = [o.output_ids for o in fitted.generate(prompts, 12)]
    monkeypatch.setattr(cpu, "maker", lambda: "amd")
    other = SpeculativeEngine(target, draft, shape, lanes=lanes)
    assert other._verifier.blocks[0].mlp.down._reordered is None  # type: ignore[attr-defined]
    assert [o.output_ids for o in other.generate(prompts, 12)] == ours
