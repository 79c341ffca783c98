"""The wheel: it builds, installs into a fresh environment, holds every module, and binds nobody's versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy, so that the tree gets no ``build`` folder."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("eagle_convert", "runtime"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--wheel-dir", tree / "dist", tree])
    (made,) = (tree / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel; what the wheel requires is borrowed from the running one."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home)
    python = home / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel])
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # a path from a .pth file does not have its own .pth files read: an editable install of this tree stays out
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def run(command: list[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    expected = {str(path.relative_to(base))
                for base, package in ((ROOT, "eagle_convert"), (ROOT / "runtime", "eagle_runtime"))
                for path in (base / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == expected


def test_both_packages_come_from_the_wheel_and_the_command_runs(installed: Path) -> None:
    where = run([installed / "bin" / "python", "-c",
                 "import eagle_convert, eagle_runtime; print(eagle_convert.__file__, eagle_runtime.__file__)"])
    assert all(path.startswith(str(installed)) for path in where.split())
    version = run([installed / "bin" / "eagle-convert", "--version"])
    assert re.search(r"\d+\.\d+\.\d+", version)
    assert run([installed / "bin" / "python", "-m", "eagle_convert", "--version"]) == version


def test_core_requirements_have_no_upper_bound(wheel: Path) -> None:
    """Installing beside vLLM or SGLang must move none of their versions."""
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(z.read(name).decode())
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(core) >= 5
    assert [line for line in core if re.search(r"<|==|~=|!=", line)] == []
    assert set(metadata.get_all("Provides-Extra", [])) == {"runtime", "vllm", "report", "test", "dev"}


FORBIDDEN = {
    "a machine path": re.compile(r"/(?:work|root)/"),
    "a temporary path": re.compile(r"/tmp/[a-z]\w*/"),
    "a registry host": re.compile(r"\b(?:py[p]i\.org|pythonhosted\.org|npm[j]s\.org|deb[i]an\.org|whl/c[p]u)\b"),
    "an index option": re.compile(r"--(?:extra-)?index-u[r]l"),
    "a note to self": re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b"),
}
TEXT = {".py", ".md", ".cfg", ".toml", ".txt", ".sh", ".yml", ".jinja", ".html", ""}


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_tree_names_no_machine_and_no_registry() -> None:
    found = []
    for path in tracked():
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found += [f"{path}:{number}: {what}" for what, pattern in FORBIDDEN.items() if pattern.search(line)]
    assert found == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in tracked("*.md")
              for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
              if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    named: dict[str, str] = {}
    for page in tracked("*.md", "tests/*.py", "fixtures/*.py", "bench/*.py"):
        for target in re.findall(r"[`\n(]make ([a-z][a-z0-9-]+)", page.read_text(encoding="utf-8")):
            named[target] = str(page.relative_to(ROOT))
    assert named.keys() >= {"demo", "test", "test-real", "smollm2"}
    assert {target: page for target, page in named.items() if target not in targets} == {}
