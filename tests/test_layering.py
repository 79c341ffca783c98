"""Who may import whom, and what an import costs. The table is design's; a parse of every import is held against it.

Three kinds of imports: at module level (paid by everyone who imports the module), inside a function (lazy: paid by who
calls it), and under ``TYPE_CHECKING`` (free). Relations inside our own packages are held to the table whatever the
kind; outside packages are allowed by kind.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"eagle_convert": ROOT / "eagle_convert", "eagle_runtime": ROOT / "runtime" / "eagle_runtime"}


@dataclass(frozen=True)
class Rule:
    """What a module (or every module of a subpackage) may import, besides the standard library."""

    inside: tuple[str, ...] = ()  # our own modules, or subpackages with all they hold
    top: tuple[str, ...] = ()  # outside packages, at module level
    lazy: tuple[str, ...] = ()  # outside packages, inside functions


ERRORS = "eagle_convert.errors"
SPEC = "eagle_runtime.config"  # DraftSpec: the one description of a draft, standard library only
FILES = (ERRORS, "eagle_convert.files.json_text", "eagle_convert.files.ranges", "eagle_convert.files.dtypes")
READING = (ERRORS, SPEC, "eagle_convert.vocab", "eagle_convert.source", "eagle_convert.tensors",
           "eagle_convert.files.dtypes", "eagle_convert.files.lazy_numpy", "eagle_convert.findings",
           "eagle_convert.dialects", "eagle_runtime.compact")
HUB = (ERRORS, "eagle_convert.source", "eagle_convert.hub.errors", "eagle_convert.hub.client",
       "eagle_convert._version")
DECIDING = ("eagle_convert.bits", "eagle_convert.casting", "eagle_convert.tables", "eagle_convert.pairing",
            "eagle_convert.norms", "eagle_convert.sharing", "eagle_convert.manifest")
ALL = ("eagle_convert", "eagle_runtime")

# The longest row that fits a module's name holds for it.
RULES: dict[str, Rule] = {
    "eagle_convert": Rule(inside=ALL),  # the lazy public API: the cost test below speaks for it
    "eagle_convert.__main__": Rule(inside=("eagle_convert.cli",)),
    "eagle_convert._version": Rule(),
    "eagle_convert.errors": Rule(),
    "eagle_convert.vocab": Rule(inside=(ERRORS, "eagle_convert.files.lazy_numpy")),
    "eagle_convert.files.lazy_numpy": Rule(lazy=("numpy",)),
    # Reading files, from the bytes up.
    "eagle_convert.files.json_text": Rule(inside=(ERRORS,)),
    "eagle_convert.files.ranges": Rule(inside=(ERRORS,)),
    "eagle_convert.files.dtypes": Rule(top=("numpy",)),
    "eagle_convert.files.safetensors_header": Rule(inside=FILES),
    "eagle_convert.files.pickle_machine": Rule(inside=FILES),
    "eagle_convert.files.pickle_bin": Rule(inside=(*FILES, "eagle_convert.files.pickle_machine",
                                             "eagle_convert.files.safetensors_header")),
    "eagle_convert.files.weight_files": Rule(inside=(*FILES, "eagle_convert.files.safetensors_header")),
    "eagle_convert.source": Rule(inside=(*FILES, "eagle_convert.files.weight_files", "eagle_convert.hub.source")),
    "eagle_convert.tensors": Rule(inside=(*FILES, "eagle_convert.files.safetensors_header",
                                          "eagle_convert.files.pickle_bin", "eagle_convert.source"), top=("numpy",),
                                  lazy=("torch",)),
    "eagle_convert.findings": Rule(inside=(ERRORS, "eagle_convert.finding_texts")),
    "eagle_convert.finding_texts": Rule(),
    "eagle_convert.dialects": Rule(inside=(*READING, "eagle_convert.manifest", "eagle_convert.engine_facts",
                                           "eagle_runtime.views"), top=("numpy",),
                                   lazy=("torch", "gguf")),
    # Deciding what a compact folder holds: the target's tables, the norms, the ledger.
    "eagle_convert.bits": Rule(inside=FILES),
    "eagle_convert.casting": Rule(inside=FILES, top=("numpy",)),
    "eagle_convert.tables": Rule(inside=(*READING, "eagle_convert.casting"), top=("numpy",)),
    "eagle_convert.pairing": Rule(inside=(*READING, "eagle_convert.tables")),
    "eagle_convert.norms": Rule(inside=READING),
    "eagle_convert.sharing": Rule(inside=(*READING, "eagle_convert.tables", "eagle_convert.pairing",
                                          "eagle_convert.manifest")),
    "eagle_convert.compaction": Rule(inside=(*READING, *DECIDING), top=("numpy",)),
    "eagle_convert.opening": Rule(inside=(*READING, "eagle_convert.pairing", "eagle_convert.manifest",
                                          "eagle_convert.verification")),
    "eagle_convert.packing": Rule(inside=(*READING, *DECIDING, "eagle_convert.compaction", "eagle_convert.opening",
                                          "eagle_convert.streams"), top=("numpy",)),
    "eagle_convert.streams": Rule(inside=(*READING, *DECIDING, "eagle_convert.compaction"), top=("numpy",)),
    "eagle_convert.engine_facts": Rule(inside=(SPEC, "eagle_convert.engine_case")),
    "eagle_convert.engine_case": Rule(inside=(SPEC, "eagle_runtime.compact")),
    "eagle_convert.files.transaction": Rule(inside=(ERRORS,)),
    "eagle_convert.writer": Rule(inside=(*FILES, "eagle_convert.files.safetensors_header",
                                         "eagle_convert.files.transaction")),
    "eagle_convert.inspection": Rule(inside=(*READING, *DECIDING, "eagle_convert.compaction", "eagle_convert.opening",
                                             "eagle_convert.engine_facts"),
                                     top=("numpy",)),
    "eagle_convert.conversion": Rule(inside=(*READING, *DECIDING, "eagle_convert.compaction", "eagle_convert.opening",
                                             "eagle_convert.streams", "eagle_convert.packing",
                                             "eagle_convert.engine_facts",
                                             "eagle_convert.writer", "eagle_convert.files.transaction",
                                             "eagle_convert._version"), top=("numpy",)),
    "eagle_convert.parity": Rule(inside=(*READING, "eagle_convert.parity", "eagle_convert.data",
                                         "eagle_convert.manifest", "eagle_convert.pairing",
                                         "eagle_convert._version", "eagle_runtime.choices"),
                                 lazy=("torch", "transformers", "tokenizers", "jinja2")),
    "eagle_convert.parity.engines": Rule(inside=(*READING, "eagle_convert.parity", "eagle_convert.hub.source",
                                                 "eagle_convert.compaction", "eagle_convert.pairing",
                                                 "eagle_convert._version", "eagle_runtime"),
                                         lazy=("torch", "transformers", "vllm")),
    "eagle_convert.manifest": Rule(inside=(*READING, "eagle_convert._version", "eagle_convert.files.json_text")),
    "eagle_convert.verification": Rule(inside=(*READING, "eagle_convert.manifest")),
    # The hub: reading (source.py opens ids through hub/source.py) and publishing.
    "eagle_convert.hub.errors": Rule(inside=(ERRORS, "eagle_convert.source"), lazy=("huggingface_hub",)),
    "eagle_convert.hub.client": Rule(inside=HUB, lazy=("huggingface_hub",)),
    "eagle_convert.hub.range": Rule(inside=(*HUB, "eagle_convert.files.ranges"), lazy=("huggingface_hub",)),
    "eagle_convert.hub.source": Rule(inside=(*HUB, "eagle_convert.files.ranges", "eagle_convert.hub.range",
                                             "eagle_convert.files.weight_files", "eagle_convert.files.json_text"),
                                     lazy=("huggingface_hub",)),
    "eagle_convert.hub.identity": Rule(inside=HUB, lazy=("huggingface_hub",)),
    "eagle_convert.hub.folder": Rule(inside=(*READING, "eagle_convert.manifest", "eagle_convert.hub.errors",
                                             "eagle_convert.inspection")),
    "eagle_convert.hub.plan": Rule(inside=(*READING, *HUB, "eagle_convert.hub.card", "eagle_convert.hub.card_text",
                                           "eagle_convert.manifest", "eagle_convert.hub.folder"),
                                   lazy=("huggingface_hub",)),
    "eagle_convert.hub.push": Rule(inside=(*READING, *HUB, "eagle_convert.hub.card", "eagle_convert.hub.folder",
                                      "eagle_convert.hub.identity", "eagle_convert.hub.plan",
                                      "eagle_convert.hub.range"),
                              lazy=("huggingface_hub",)),
    "eagle_convert.hub.card_text": Rule(inside=("eagle_convert.manifest",)),
    "eagle_convert.hub.card": Rule(inside=(*READING, "eagle_convert.hub.card_text", "eagle_convert.hub.errors"),
                               lazy=("huggingface_hub", "yaml")),
    "eagle_convert.hub": Rule(),
    "eagle_convert.files": Rule(),
    "eagle_convert.data": Rule(),
    "eagle_convert.cli": Rule(inside=ALL, top=("click",)),
    "eagle_runtime": Rule(inside=("eagle_runtime",), top=("torch", "safetensors", "numpy"), lazy=("transformers",)),
    "eagle_runtime.config": Rule(),
    "eagle_runtime.choices": Rule(),
    "eagle_runtime.compact": Rule(inside=(SPEC,)),
}


@dataclass(frozen=True)
class Import:
    module: str
    kind: str  # top, lazy or typing
    line: int


def sources() -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module of both packages."""
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(p for p in parts if p != "__init__"))), path


MODULES = dict(sources())


def imports_of(name: str, path: Path) -> list[Import]:
    """Every import of a module, absolute. ``from package import x`` counts as ``package.x`` where that is a module."""
    found: list[Import] = []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, kind: str) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, kind, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in MODULES else base, kind, node.lineno))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, "typing")
            for child in node.orelse:
                visit(child, kind)
        else:
            inner = "lazy" if kind == "top" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else kind
            for child in ast.iter_child_nodes(node):
                visit(child, inner)

    visit(ast.parse(path.read_text(encoding="utf-8")), "top")
    return found


def rule_of(name: str) -> Rule | None:
    """The row of the longest matching name; the packages' own rows do not speak for new top-level modules."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        key = ".".join(parts[:n])
        if key in RULES and (key != "eagle_convert" or name == "eagle_convert"):
            return RULES[key]
    return None


def within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == a or module.startswith(a + ".") for a in allowed)


def breaches(name: str, path: Path) -> list[str]:
    rule = rule_of(name)
    if rule is None:
        return [f"{name} has no row in RULES: say what it may import"]
    out = []
    for i in imports_of(name, path):
        top = i.module.partition(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top in PACKAGES:
            allowed = rule.inside
        else:
            allowed = {"top": rule.top, "lazy": rule.top + rule.lazy, "typing": (top,)}[i.kind]
        # a package's own __init__ holds no code that costs anything (proved below), so naming it is free
        if not within(i.module, allowed) and i.module not in PACKAGES:
            out.append(f"{name}:{i.line} imports {i.module} ({i.kind})")
    return out


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_follow_the_table(name: str) -> None:
    assert breaches(name, MODULES[name]) == []


def test_the_runtime_never_imports_the_tool() -> None:
    guilty = [f"{name}:{i.line}" for name, path in MODULES.items() if name.startswith("eagle_runtime")
              for i in imports_of(name, path) if within(i.module, ("eagle_convert",))]
    assert guilty == []


def test_no_cycle_among_module_level_imports() -> None:
    graph = {name: {i.module for i in imports_of(name, path) if i.kind == "top" and i.module in MODULES}
             for name, path in MODULES.items()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name):], name))
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_every_module_has_its_line_in_the_structure_page() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    absent = []
    for name, path in MODULES.items():
        inside = path.relative_to(PACKAGES[name.partition(".")[0]])
        shown = inside.name if len(inside.parts) == 1 else f"{inside.parts[0]}/"  # a subpackage has one line
        if not shown.startswith("_") and f"`{shown}`" not in page:
            absent.append(shown)
    assert sorted(set(absent)) == []


def test_the_check_sees_a_breach(tmp_path: Path) -> None:
    """A check that cannot fail is none: each kind of forbidden import is found."""
    bad = tmp_path / "vocab.py"
    bad.write_text("import torch\nfrom .cli import main\ndef f():\n    import vllm\n"
                   "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n")
    assert breaches("eagle_convert.vocab", bad) == [
        "eagle_convert.vocab:1 imports torch (top)", "eagle_convert.vocab:2 imports eagle_convert.cli (top)",
        "eagle_convert.vocab:4 imports vllm (lazy)"]
    assert breaches("eagle_convert.unheard_of", bad) == [
        "eagle_convert.unheard_of has no row in RULES: say what it may import"]


HEAVY = ("torch", "transformers", "huggingface_hub", "vllm")


def loaded_by(code: str) -> set[str]:
    """Top-level names in ``sys.modules`` after running ``code`` in a fresh interpreter."""
    report = "import sys; print('\\n' + ' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    path = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'runtime')]!r}\n"
    done = subprocess.run([sys.executable, "-c", f"{path}{code}\n{report}"], capture_output=True, text=True, check=True,
                          cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split())


def run_command(*args: str, exit_code: int = 0) -> str:
    return (f"from eagle_convert.cli import main\ntry:\n    main({list(args)!r})\n"
            f"except SystemExit as stop:\n    assert stop.code == {exit_code}, stop.code")


def test_importing_either_package_costs_the_standard_library() -> None:
    loaded = loaded_by("import eagle_convert, eagle_runtime")
    assert loaded.isdisjoint({*HEAVY, "numpy", "safetensors", "click"})


def test_help_loads_click_and_nothing_heavy() -> None:
    loaded = loaded_by(run_command("--help"))
    assert "click" in loaded
    assert loaded.isdisjoint({*HEAVY, "numpy", "safetensors"})


def test_inspect_of_headers_loads_no_numpy() -> None:
    """Its import alone would take more than half of the budget; a vocabulary table that is right needs none either."""
    for folder in ("fixtures/plant/e1", "fixtures/plant/e1b", "fixtures/plant/e3"):
        assert loaded_by(run_command("inspect", folder)).isdisjoint({*HEAVY, "numpy", "safetensors"}), folder


@pytest.mark.parametrize("layout", ["plant/e1", "layouts/e1-sharded", "layouts/e3-speculators"])
def test_inspecting_a_safetensors_folder_needs_no_torch(layout: str) -> None:
    loaded = loaded_by(run_command("inspect", f"fixtures/{layout}", "--json"))
    assert "eagle_convert" in loaded
    assert loaded.isdisjoint(HEAVY)
