"""The bundled tiny pairs, loaded for the runtime: ``pair("plant", "e1")`` is a target and a draft on it."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from eagle_runtime.compact import spec_from_compact
from eagle_runtime.draft import Draft
from eagle_runtime.loader import load_draft, load_target
from eagle_runtime.target import Target
from eagle_runtime.views import DraftView

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
TARGETS = {"e1b": "tgt_offset", "e3narrow": "tgt96"}


def view(folder: Path) -> DraftView:
    """An official folder as a view: its names are the canonical ones, but for ``t2d``."""
    file = safe_open(folder / "model.safetensors", framework="pt")
    tensors = {name: file.get_tensor(name) for name in file.keys() if name != "t2d"}  # noqa: SIM118
    config = json.loads((folder / "config.json").read_text())
    spec = spec_from_compact(config, {name: tuple(t.shape) for name, t in tensors.items()})
    return DraftView(spec, {name: (lambda t=t: t) for name, t in tensors.items()})


def pair(kind: str, head: str, *, on: str | None = None, faults: tuple[str, ...] = (),
         pack: bool = False) -> tuple[Target, Draft]:
    """``kind`` is ``plant`` or ``rand``, ``head`` one of e1, e1b, e3, e3narrow; ``on`` names another target.

    On ``tgt_tuned`` the e3 head accepts now more, now fewer drafts (3.02 tokens a step).
    """
    name = TARGETS.get(head, "tgt") if kind == "plant" or head == "e3narrow" else "tgt"
    target = load_target(FIXTURES / kind / (on or name), pack=pack)
    return target, load_draft(view(FIXTURES / kind / head), target, pack=pack, faults=faults)


def plant_prompts(n: int) -> list[list[int]]:
    lines = (FIXTURES / "plant" / "prompts.jsonl").read_text().splitlines()[:n]
    return [json.loads(line)["prompt_ids"] for line in lines]
