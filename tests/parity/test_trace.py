"""Trace records and files: the counting rule, the round trip, and an error with file and line for every bad field."""

from __future__ import annotations

import copy
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_convert.errors import BrokenFileError, SourceError
from eagle_convert.parity.settings import Settings, shape_document, shape_from
from eagle_convert.parity.trace import PromptTrace, StepRecord, Trace, accounting_faults, truncated_flags
from eagle_convert.parity.trace_file import parse_trace, read_trace, write_trace
from eagle_runtime.config import Sampling, TreeShape

HEAD = {"schema": "eagle-convert/trace/1", "engine": "official", "version": "1", "method": "eagle", "draft_tokens": 4,
        "tree": None, "temperature": 0, "seed": 0, "dtype": "float32", "max_new_tokens": 8, "eos_token_ids": [2]}
ROW = {"prompt_ids": [1, 5], "output_ids": [7, 8, 9],
       "steps": [{"proposed": 4, "accepted": 1, "emitted": 2, "matches": [True, False, True, False],
                  "truncated": False},
                 {"proposed": 4, "accepted": 0, "emitted": 1, "matches": None, "truncated": True}]}


def text(head=HEAD, *rows):
    return "\n".join(json.dumps(line) for line in (head, *(rows or (ROW,))))


@pytest.mark.parametrize(("root", "accepted", "counts"), [
    (0, 4, True),  # 0 + 4 + 1 < 8
    (2, 0, True),  # 2 + 4 + 1 < 8
    (3, 0, False),  # 3 + 4 + 1 = 8: the end would cut a full step
])
def test_a_step_counts_while_a_full_one_would_fit(root, accepted, counts):
    steps = [0] * root + [accepted]
    assert truncated_flags(list(range(10, 30)), steps, 4, 8, [])[-1] is not counts


def test_a_step_with_a_stop_token_among_root_and_accepted_does_not_count():
    assert truncated_flags([5, 6, 2, 7], [1, 1], 2, 99, [2]) == [False, True]
    assert truncated_flags([5, 2, 7, 7], [1, 1], 2, 99, [2]) == [True, False]


def test_the_bonus_may_be_a_stop_token():
    """y_{r+a+1} is the next root: the step that emits it counts, the next one does not."""
    assert truncated_flags([5, 2], [0, 0], 2, 99, [2]) == [False, True]


def test_round_trip(tmp_path):
    trace = parse_trace(text(), "t.jsonl")
    write_trace(tmp_path / "t.jsonl", trace)
    assert read_trace(tmp_path / "t.jsonl") == trace
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_counts_instead_of_steps():
    row = {"prompt_ids": [1], "output_ids": [], "counts": {"k": 4, "steps": 3, "accepted": 5}}
    counts = parse_trace(text(HEAD, row), "t").prompts[0].counts
    assert counts is not None
    assert counts.document() == {"k": 4, "steps": 3, "accepted": 5}


def _set(path, value):
    def change(head, row):
        place = head if path[0] == "head" else row
        for key in path[1:-1]:
            place = place[key]
        if value is _GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return change


_GONE = object()


@pytest.mark.parametrize(("change", "line", "says"), [
    (_set(("head", "schema"), "eagle-convert/trace/2"), 1, 'expected "eagle-convert/trace/1"'),
    (_set(("head", "method"), "medusa"), 1, "expected one of eagle, eagle3"),
    (_set(("head", "draft_tokens"), None), 1, "exactly one of draft_tokens and tree"),
    (_set(("head", "draft_tokens"), 0), 1, "a chain of 0 drafts"),
    (_set(("head", "draft_tokens"), True), 1, "expected a whole number"),
    (_set(("head", "tree"), {"total_token": 60}), 1, "exactly one"),
    (_set(("head", "temperature"), -1), 1, "expected a number >= 0"),
    (_set(("head", "temperature"), float("nan")), 1, "expected a number >= 0"),
    (_set(("head", "eos_token_ids"), 2), 1, "expected a list"),
    (_set(("head", "seed"), _GONE), 1, "'seed' is missing"),
    (_set(("head", "max_new_tokens"), 0), 1, "at least 1"),
    (_set(("row", "prompt_ids"), []), 2, "prompt_ids is empty"),
    (_set(("row", "output_ids", 0), -3), 2, "output_ids[0] is -3"),
    (_set(("row", "steps"), _GONE), 2, "exactly one of 'steps' and 'counts'"),
    (_set(("row", "steps", 0, "accepted"), 5), 2, "steps[0].accepted is 5, at most 4"),
    (_set(("row", "steps", 0, "proposed"), 5), 2, "drafts at most 4"),
    (_set(("row", "steps", 0, "emitted"), 1), 2, "expected accepted + 1 = 2"),
    (_set(("row", "steps", 0, "matches"), [True]), 2, "one for each of 4"),
    (_set(("row", "steps", 0, "matches"), [True, True, False, False]), 2, "begins with 2 true, but 1"),
    (_set(("row", "steps", 1, "truncated"), 1), 2, "expected true or false"),
])
def test_every_bad_field_is_named_with_its_line(change, line, says):
    head, row = copy.deepcopy(HEAD), copy.deepcopy(ROW)
    change(head, row)
    with pytest.raises(BrokenFileError) as caught:
        parse_trace(text(head, row), "t.jsonl")
    assert caught.value.where.startswith(f"t.jsonl, line {line}: ")
    assert says in caught.value.where


@pytest.mark.parametrize("content", ["", "\n", "[1]", "{", '{"schema":', "[" * 100_000])
def test_what_is_no_trace_at_all(content):
    with pytest.raises(BrokenFileError):
        parse_trace(content, "t")


def test_no_such_file_and_not_a_text(tmp_path):
    with pytest.raises(SourceError):
        read_trace(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BrokenFileError, match="not a text"):
        read_trace(tmp_path / "binary")
    with pytest.raises(SourceError, match="a folder"):
        read_trace(tmp_path)


def trace(rows, shape=None, max_new_tokens=8, stops=(2,)):
    return Trace("e", "1", Settings("eagle", shape or TreeShape.chain(4), max_new_tokens, eos_token_ids=stops), rows)


def test_a_text_without_a_token_for_each_root_and_draft_is_a_fault():
    row = PromptTrace((1,), (7, 8), (StepRecord(4, 2, 3),))
    assert next(accounting_faults(trace((row,))))[1].startswith("2 output ids, expected 3")


def test_a_truncated_flag_in_the_wrong_place_is_a_fault():
    row = PromptTrace((1,), (7, 8, 9, 10), (StepRecord(4, 2, 3), StepRecord(4, 0, 1)))
    assert "step 1 says truncated false" in next(accounting_faults(trace((row,))))[1]


@st.composite
def runs(draw):
    """A run as an engine would make it: it stops at the limit or at a stop token, whichever comes first."""
    k, limit = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    text_ids = draw(st.lists(st.integers(2, 9), min_size=limit + 2 * k + 2, max_size=limit + 2 * k + 2))
    accepted, root = [], 0
    while root < limit and 2 not in text_ids[:root]:
        accepted.append(draw(st.integers(0, k)))
        root += accepted[-1] + 1
    return k, limit, text_ids[:root], accepted


@given(runs())
def test_where_the_rule_counts_the_whole_step_is_inside_the_text(run):
    """A counting step sees every token that could decide it, so the end of a text never changes its count."""
    k, limit, output, accepted = run
    flags = truncated_flags(output, accepted, k, limit, [2])
    root = 0
    for a, flag in zip(accepted, flags, strict=True):
        if not flag:
            assert root + k + 1 < limit
            assert 2 not in output[root: root + a + 1]
        root += a + 1
    steps = tuple(StepRecord(k, a, a + 1, None, f) for a, f in zip(accepted, flags, strict=True))
    rows = (PromptTrace((1,), tuple(output), steps),)
    assert list(accounting_faults(trace(rows, TreeShape.chain(k), limit))) == []
    # every later step of a text without stop tokens does not count either
    if 2 not in output:
        assert all(b or not a for a, b in pairwise(flags))


@pytest.mark.parametrize("shape", [TreeShape.chain(4), TreeShape.dynamic(60, 7, 10),
                                   TreeShape.static([[0], [1], [0, 0]])])
def test_shapes_survive_the_file(shape):
    document = json.loads(json.dumps(shape_document(shape)))
    assert shape_from(document["draft_tokens"], document["tree"]) == shape


def test_a_chain_spelled_as_a_tree_is_the_chain():
    assert shape_from(None, {"total_token": 5, "depth": 3, "top_k": 1}) == TreeShape.chain(4)
    assert shape_from(None, {"total_token": 5, "depth": 9, "top_k": 1}) == TreeShape.chain(4)


def test_settings_document_has_what_a_trace_needs():
    document = Settings("eagle3", TreeShape.chain(3), sampling=Sampling(0.7, 0.9, 5, 11)).document()
    assert set(HEAD) - {"schema", "engine", "version"} <= set(document)
