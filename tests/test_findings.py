"""The catalogue of findings: ids are unique and well formed, texts are complete."""

import re
import string

import pytest

from eagle_convert import findings


def test_ids_are_unique_and_sorted():
    ids = [entry.id for entry in findings.CATALOGUE]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert all(re.fullmatch(r"EC[1-9]\d\d", i) for i in ids)


def test_an_id_that_stands_twice_is_refused():
    entry = findings.Entry("EC999", "warn", "title", "message", "fix", "meaning")
    with pytest.raises(ValueError, match="EC999 stands twice"):
        findings._by_id((entry, entry))


@pytest.mark.parametrize("entry", findings.CATALOGUE, ids=lambda e: e.id)
def test_every_entry_says_what_it_means_and_how_to_go_on(entry):
    assert "" not in (entry.title, entry.message, entry.meaning)
    assert entry.fix or entry.severity == "info"
    for text in (entry.message, entry.fix):
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text))


def test_a_finding_is_its_entry_filled_in(monkeypatch):
    entry = findings.Entry("EC999", "error", "title", "{n} of them", "give --count {n}", "meaning")
    monkeypatch.setitem(findings._ENTRIES, "EC999", entry)
    got = findings.finding("EC999", "model.safetensors: fc.weight", n=3)
    assert got.document() == {"id": "EC999", "severity": "error", "where": "model.safetensors: fc.weight",
                              "message": "3 of them", "fix": "give --count 3"}
    assert findings.finding("EC999", "x", severity="warn", n=3).severity == "warn"
    with pytest.raises(KeyError):
        findings.finding("EC000", "x")
