"""The published acceptance lengths of PLANT are what our reference measures."""

from __future__ import annotations

import re

import pytest

from fixtures.make import HERE
from fixtures.numbers import ROWS, Row, measure


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_reference_measures_the_published_number(row: Row) -> None:
    assert f"{measure(row):.2f}" == row.length


def test_the_page_publishes_these_numbers() -> None:
    page = (HERE / "README.md").read_text(encoding="utf-8")
    published = re.findall(r"^\| (e[13]b?\b.*) \| (\d\.\d\d) \|$", page, re.MULTILINE)
    assert published == [(row.what, row.length) for row in ROWS]
