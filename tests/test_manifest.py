"""The manifest's file is a function of its content, and reads back as what was written."""

from __future__ import annotations

import json

import pytest

from eagle_convert.errors import BrokenFileError
from eagle_convert.manifest import FILE, Borrowed, Manifest, Origin, TargetOrigin, decode

MANIFEST = Manifest(
    source=Origin("org/head", "a" * 40, {"fc.weight": "11" * 32}),
    target=TargetOrigin("org/model", None, {"embed_tokens.weight": Borrowed("model.embed_tokens.weight", "22" * 32,
                                                                            "F16", (320, 64))}),
    algorithm="eagle", dialect="eagle1",
    ledger=({"source": "fc.weight", "destination": "fc.weight", "action": "kept", "reason": "", "sha256": "11" * 32,
             "bytes": 16384},),
    findings=({"id": "EC301", "severity": "info"},), options=("--dtype", "float16"), trained_window=2048)


def test_round_trip() -> None:
    assert decode(MANIFEST.encode()) == MANIFEST


def test_bytes_do_not_depend_on_the_order_of_insertion() -> None:
    one, other = ({"b": "2", "a": "1"}, {"a": "1", "b": "2"})
    assert Manifest(Origin("org/head", None, one), None, "eagle", "x").encode() == \
        Manifest(Origin("org/head", None, other), None, "eagle", "x").encode()


@pytest.mark.parametrize(("change", "said"), [
    (lambda d: d.pop("ledger"), "'ledger'"),
    (lambda d: d.update(schema="eagle-convert/manifest/2"), "manifest/2"),
    (lambda d: d.update(ledger={"a": 1}), "lists of objects"),
    (lambda d: d.update(source="org/head"), "indices"),
])
def test_a_broken_manifest_is_named(change: object, said: str) -> None:
    document = MANIFEST.document()
    change(document)  # type: ignore[operator]
    with pytest.raises(BrokenFileError) as caught:
        decode(json.dumps(document).encode())
    assert said in caught.value.where
    assert FILE in caught.value.where
    assert caught.value.how


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_file_that_is_no_manifest_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(BrokenFileError):
        decode(data)
