"""A server's metrics text (Prometheus format) -> counters, or gauges where a server has no counters.

Metric names: vLLM 0.32 ``v1/spec_decode/metrics.py`` (V1), vLLM 0.6 ``engine/metrics.py`` (V0), SGLang 0.5.23
``srt/metrics/collector.py``. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eagle_convert.errors import BrokenFileError

from .metrics import CountsKind
from .trace import Counts

V1_ONLY = ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos")
V0_ONLY = ("vllm:spec_decode_num_emitted_tokens", "vllm:spec_decode_draft_acceptance_rate",
           "vllm:spec_decode_efficiency")
SHARED = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
SGLANG = ("sglang:spec_accept_length", "sglang:spec_accept_rate")
_KNOWN = (*V1_ONLY, *V0_ONLY, *SHARED, *SGLANG)

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')


@dataclass(frozen=True)
class ServerText:
    """What a metrics text says.

    Attributes:
        source: ``vllm-v1``, ``vllm-v0`` or ``sglang``.
        kind: what the word "accepted" means in ``counts``.
        counts: the counters; empty for SGLang.
        gauges: ratios that the server computed itself, under the server's names.
    """

    source: str
    kind: CountsKind
    counts: Counts
    gauges: Mapping[str, float]


@dataclass(frozen=True)
class _Sample:
    name: str
    labels: Mapping[str, str]
    value: float
    place: str


def read_server_text(text: str, name: str, draft_tokens: int | None = None) -> ServerText:
    """The speculative-decoding metrics in ``text`` (``name`` is the file's, for errors).

    ``draft_tokens`` is k where the text does not say it: vLLM 0.6 counts no steps, so its acceptance length needs k.
    Raises BrokenFileError where the text holds none of the known metrics, or those of two models or two servers.
    """
    samples = [s for s in _samples(text, name) if s.name in _KNOWN]
    if not samples:
        raise BrokenFileError(
            "no speculative-decoding metrics in this text", where=f"{name}: none of {', '.join(_KNOWN)}",
            how="save the server's /metrics while it serves with speculation on; or give a trace or a counters JSON")
    models = sorted({s.labels["model_name"] for s in samples if "model_name" in s.labels})
    if len(models) > 1:
        raise BrokenFileError("metrics of two models in one text", where=f"{name}: {', '.join(models)}",
                              how="keep the lines of one model")
    names = {s.name for s in samples}
    if names & set(SGLANG):
        if names - set(SGLANG):
            raise BrokenFileError("metrics of two servers in one text", where=f"{name}: vLLM and SGLang names",
                                  how="keep the lines of one server")
        return ServerText("sglang", "v1", Counts(), _gauges(samples, SGLANG))
    return _vllm_v0(samples, draft_tokens) if names & set(V0_ONLY) else _vllm_v1(samples, draft_tokens)


def _vllm_v1(samples: list[_Sample], draft_tokens: int | None) -> ServerText:
    per_position = None
    rows = [s for s in samples if s.name == V1_ONLY[1]]
    if rows:
        table: dict[int, int] = {}
        for row in rows:
            position = row.labels.get("position", "")
            if not position.isdecimal():
                raise BrokenFileError("a per-position counter without its position",
                                      where=f'{row.place}: expected a label position="0", "1", ...',
                                      how="save the server's /metrics again")
            table[int(position)] = table.get(int(position), 0) + _count(row)
        per_position = tuple(table.get(i, 0) for i in range(max(table) + 1))
    counts = Counts(k=len(per_position) if per_position else draft_tokens, steps=_total(samples, V1_ONLY[0]),
                    drafted=_total(samples, SHARED[0]), accepted=_total(samples, SHARED[1]),
                    per_position=per_position)
    return ServerText("vllm-v1", "v1", counts, {})


def _vllm_v0(samples: list[_Sample], draft_tokens: int | None) -> ServerText:
    gauges = _gauges(samples, V0_ONLY[1:])
    drafted, emitted = _total(samples, SHARED[0]), _total(samples, V0_ONLY[0])
    k = draft_tokens or _k_from_efficiency(gauges.get(V0_ONLY[2]), drafted, emitted)
    return ServerText("vllm-v0", "v0", Counts(k=k, drafted=drafted, accepted=_total(samples, SHARED[1]),
                                              emitted=emitted), gauges)


def _k_from_efficiency(efficiency: float | None, drafted: int | None, emitted: int | None) -> int | None:
    """k from vLLM 0.6's gauge: efficiency = emitted / ((drafted / k) (k + 1)), so k / (k + 1) is known.

    None unless the answer is a whole number to within a hundredth: a gauge of another moment gives no such thing.
    """
    if not efficiency or not drafted or not emitted:
        return None
    share = efficiency * drafted / emitted
    if not 0 < share < 1:
        return None
    k = share / (1 - share)
    return round(k) if abs(k - round(k)) < 0.01 and round(k) >= 1 else None


def _total(samples: list[_Sample], name: str) -> int | None:
    """The counter summed over engines (data-parallel ranks); None where the text has none."""
    values = [_count(s) for s in samples if s.name == name]
    return sum(values) if values else None


def _count(sample: _Sample) -> int:
    if sample.value < 0 or not sample.value.is_integer():
        raise BrokenFileError("a counter that is no count", where=f"{sample.place}: {sample.value}",
                              how="save the server's /metrics again")
    return int(sample.value)


def _gauges(samples: list[_Sample], names: tuple[str, ...]) -> dict[str, float]:
    """Gauges by name. Ratios of several engines cannot be pooled without their counts."""
    out: dict[str, float] = {}
    for sample in samples:
        if sample.name in names and out.setdefault(sample.name, sample.value) != sample.value:
            raise BrokenFileError("several engines with different ratios in one text",
                                  where=f"{sample.place}: {sample.name} is {out[sample.name]} and {sample.value}",
                                  how="ratios cannot be pooled without counts: keep the lines of one engine")
    return out


def _samples(text: str, name: str) -> list[_Sample]:
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#") or not line.startswith(("vllm:", "sglang:")):
            continue
        place = f"{name}, line {number}"
        found = _SAMPLE.match(line)
        try:
            value = float(found["value"]) if found else math.nan
        except ValueError:
            value = math.nan
        metric = found["name"].removesuffix("_total") if found else line.split("{")[0].split()[0].removesuffix("_total")
        if metric not in _KNOWN:
            continue
        if found is None or not math.isfinite(value):
            raise BrokenFileError("a line of the metrics text has no number", where=f"{place}: {line[:80]}",
                                  how="save the server's /metrics again")
        labels = dict(_LABEL.findall(found["labels"] or ""))
        out.append(_Sample(metric, labels, value, place))
    return out
