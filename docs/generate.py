"""Write the pages that are made from the code: ``python docs/generate.py`` (cli, findings, layouts, engines).

``tests/test_docs.py`` compares them with the committed ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

import click  # noqa: E402

from eagle_convert import cli  # noqa: E402
from eagle_convert.dialects import DIALECTS  # noqa: E402
from eagle_convert.dialects._base import Facts  # noqa: E402
from eagle_convert.dialects.layouts import FORMATS  # noqa: E402
from eagle_convert.engine_facts import ENGINES, FACTS  # noqa: E402
from eagle_convert.finding_texts import CATALOGUE, Entry  # noqa: E402
from eagle_convert.tensors import TensorIndex  # noqa: E402

HUNDREDS = {"1": "What the file is", "2": "Config against tensors", "3": "Embedding and head", "4": "Norms and biases",
            "5": "Vocabulary", "6": "Values and dtypes", "7": "Draft against target", "8": "Engines",
            "9": "Files and publishing"}


def cli_page() -> str:
    """Every command, its arguments and options; rendered here, because click's own help differs between versions."""
    parts = ["# Command line\n", "Made from the code by `python docs/generate.py`; do not edit.\n",
             _prose(str(cli.main.help)) + "\n"]
    with click.Context(cli.main, info_name="eagle-convert") as top:
        for name in cli.main.list_commands(top):
            command = cli.main.get_command(top, name)
            assert command is not None
            parts.append(_command(name, command))
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    arguments = [f"[{_metavar(p)}]" if not p.required else _metavar(p) for p in command.params
                 if isinstance(p, click.Argument)]
    parts = [f"## {name}\n", f"`eagle-convert {' '.join([name, *arguments, '[OPTIONS]'])}`\n",
             _prose(str(command.help)) + "\n"]
    sections: dict[str, list[str]] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            sections.setdefault(getattr(param, "section", "Options"), []).append(_option(param))
    for title, rows in sections.items():
        parts.append(f"| {title} | |\n|---|---|\n" + "".join(rows))
    examples = getattr(command, "examples", ())
    if examples:
        parts.append("```\n" + "\n".join(examples) + "\n```\n")
    return "\n".join(parts)


def _option(param: click.Option) -> str:
    takes = "" if param.is_flag or param.count else f" {_metavar(param)}"
    default = f" Default: {param.default}." if param.show_default else ""
    words = f"`{', '.join(param.opts)}{takes}`".replace("|", "\\|")
    return f"| {words} | {param.help or ''}{default}{' Repeatable.' if param.multiple else ''} |\n"


def _metavar(param: click.Parameter) -> str:
    if param.metavar:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "|".join(map(str, param.type.choices))
    return str(param.name).upper() if isinstance(param, click.Argument) else param.type.name.upper()


def _prose(text: str) -> str:
    """A docstring's paragraphs, a line each."""
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))


def findings_page() -> str:
    """The catalogue of findings."""
    parts = [
        "# Findings\n",
        "Made from `eagle_convert/finding_texts.py` by `python docs/generate.py`; do not edit.\n",
        "What `inspect` and `convert` find. An id is stable and never reused. *error*: `inspect` exits with 3, and "
        "`convert` refuses with 1 unless a flag decides the matter. *warn*: the command goes on. *info*: printed with "
        "`-v`, always in the JSON documents. Words in braces are filled in.\n"]
    for digit, title in HUNDREDS.items():
        entries = [e for e in CATALOGUE if e.id[2] == digit]
        if entries:
            parts.append(f"## {title}\n")
            parts += map(_entry, entries)
    return "\n".join(parts)


def _entry(entry: Entry) -> str:
    fix = f"- To go on: {_literal(entry.fix)}\n" if entry.fix else ""
    return (f"### {entry.id} {entry.title} ({entry.severity})\n\n{entry.meaning}\n\n"
            f"- Says: {_literal(entry.message)}\n{fix}")


def _literal(template: str) -> str:
    return template.replace("{what}", "{what was found}").replace("{how}", "{what to do}")


def layouts_page() -> str:
    """Every layout that is read, with the evidence that tells it."""
    nothing = Facts(TensorIndex(), "", {}, {}, {}, "config.json", ())
    parts = [
        "# Layouts\n",
        "Made from `eagle_convert/dialects/` by `python docs/generate.py`; do not edit.\n",
        "A checkpoint is told by evidence: tensor names and shapes first, the config second, the model's name never. "
        "A layout matches when all its statements hold; exactly one has to. Those that are only explained end with the "
        "reason in `inspect`, and `convert` refuses them.\n",
        f"`convert --for` writes {', '.join(f'`{name}`' for name in FORMATS)}; what such a layout cannot express is "
        "refused by name.\n"]
    for dialect in DIALECTS:
        statements = [fact.partition(": ")[2] for fact in dialect.detect(nothing).facts]
        parts.append(f"## {dialect.name}\n\n{dialect.title[0].upper()}{dialect.title[1:]}.\n\n"
                     + "".join(f"- {text}\n" for text in statements))
    return "\n".join(parts)


def engines_page() -> str:
    """The table of engine facts."""
    parts = [
        "# Engines\n",
        "Made from `eagle_convert/engine_facts.py` by `python docs/generate.py`; do not edit.\n",
        "What each engine does with a head as it is found; `inspect` applies these to a file, `convert --for` to what "
        "it is about to write. *stops*: it refuses or dies. *wrong*: it loads and computes something else. *note*: "
        "worth knowing. A fact is *loaded* (that loader was run), *read* (in its source) or *reported* (in an issue or "
        "pull request); the place follows in brackets.\n"]
    for engine, (version, _) in ENGINES.items():
        parts.append(f"## {engine} ({version})\n\n| heads | effect | why | known |\n|---|---|---|---|\n" + "".join(
            f"| {_HEADS[fact.algorithm]} | {fact.effect} | {fact.why} ({fact.source}) | {fact.grade} |\n"
            for fact in FACTS if fact.engine == engine))
    return "\n".join(parts)


_HEADS = {None: "all", "eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}

PAGES = {"cli.md": cli_page, "findings.md": findings_page, "layouts.md": layouts_page, "engines.md": engines_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
