"""The command line as tests drive it, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.numpy import load_file

from eagle_convert import cli


@dataclass(frozen=True)
class Ran:
    """Exit code, both streams, and the JSON document where ``--json`` was given."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    @property
    def error(self) -> dict[str, str]:
        """what, where, how of an ``eagle-convert/error/1``."""
        assert self.document["schema"] == "eagle-convert/error/1"
        assert self.document["exit_code"] == self.code
        error: dict[str, str] = self.document["error"]
        return error

    def findings(self, id: str) -> list[dict[str, str]]:
        return [f for f in self.document["findings"] if f["id"] == id]

    def finding(self, id: str) -> dict[str, str]:
        """The one finding of that id."""
        (found,) = self.findings(id)
        return found

    @property
    def ids(self) -> set[str]:
        """Ids of the warnings and errors."""
        return {f["id"] for f in self.document["findings"] if f["severity"] != "info"}


def run(*args: object, env: Mapping[str, str] | None = None) -> Ran:
    result = CliRunner().invoke(cli.main, [str(a) for a in args], env=env)
    return Ran(result.exit_code, result.stdout, result.stderr)


def convert(source: object, dest: Path, *args: object) -> Ran:
    """``convert --json`` that must succeed; nothing but warnings may be on stderr."""
    ran = run("convert", source, dest, "--json", *args)
    assert ran.code == 0, ran.stdout
    assert ran.document["schema"] == "eagle-convert/convert/1"
    assert not [line for line in ran.stderr.splitlines() if not line.startswith(("warning: ", "  how: "))]
    return ran


def refused(source: object, dest: Path, *args: object) -> dict[str, str]:
    """``convert`` that must fail with 1 and three-part message, and leave no DEST nor temporary sibling."""
    ran = run("convert", source, dest, "--json", *args)
    assert ran.code == 1, ran.stdout
    error = ran.error
    assert all(error.values()), error
    assert not dest.exists()
    assert [p for p in dest.parent.iterdir() if "eagle-convert-" in p.name] == []
    return error


def inspect(source: object, *args: object, code: int = 0) -> Ran:
    """``inspect --json`` with an ``inspect/1`` document and the expected exit code."""
    ran = run("inspect", source, "--json", *args)
    assert ran.code == code, ran.stdout
    assert ran.document["schema"] == "eagle-convert/inspect/1"
    return ran


def tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a written folder (one file, no BF16)."""
    return dict(load_file(folder / "model.safetensors"))


def config(folder: Path) -> dict[str, Any]:
    out: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return out


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.tobytes()


def kept_bit_equal(ran: Ran, dest: Path, source: Mapping[str, NDArray[Any]]) -> None:
    """Every tensor of the output is its source's, bit for bit, and the ledger's digests say so."""
    import hashlib

    out = tensors(dest)
    rows = {row["destination"]: row for row in ran.document["ledger"] if row["destination"]}
    assert set(out) == set(rows)
    for name, value in out.items():
        assert same_bits(value, source[rows[name]["source"]]), name
        assert rows[name]["sha256"] == hashlib.sha256(value.tobytes()).hexdigest()
    assert {row["source"] for row in ran.document["ledger"]} == set(source)
