"""Pages that are made from the code are what the code makes; pages that are written name what exists."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from eagle_convert import cli
from eagle_convert.finding_texts import CATALOGUE

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_made_page_is_what_the_script_makes(name):
    """If this fails: ``python docs/generate.py``."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_command_and_every_finding_is_on_its_page():
    commands, findings = ((DOCS / name).read_text(encoding="utf-8") for name in ("cli.md", "findings.md"))
    assert all(f"## {entry.name}\n" in commands for entry in cli.COMMANDS)
    assert all(f"### {entry.id} " in findings for entry in CATALOGUE)


def test_the_short_help_is_the_commands_own_subject():
    """The main help's line and the command's module belong together."""
    for entry in cli.COMMANDS:
        command = cli.main.get_command(cli.main.make_context("eagle-convert", [], resilient_parsing=True), entry.name)
        assert command is not None
        assert command.name == entry.name
        assert command.help


def test_ids_that_the_written_pages_name_exist():
    ids = {entry.id for entry in CATALOGUE}
    for page in DOCS.glob("*.md"):
        assert set(re.findall(r"\bEC\d{3}\b", page.read_text(encoding="utf-8"))) <= ids, page.name


def test_the_documents_shown_are_json():
    for page in DOCS.glob("*.md"):
        for block in re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            json.loads(block)
