"""What this interpreter has: versions, devices, engines. For ``eagle-convert env`` and bug reports."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from eagle_convert._version import __version__

from .engines import ENGINES

SCHEMA = "eagle-convert/env/1"
PACKAGES = ("torch", "numpy", "safetensors", "click", "huggingface-hub", "transformers", "tokenizers", "jinja2",
            "vllm", "gguf")


@dataclass(frozen=True)
class Environment:
    """The document ``eagle-convert/env/1``.

    Attributes:
        version: of eagle-convert.
        python, platform: the interpreter and the system, without host or user names.
        packages: versions; None is not installed.
        torch: build, threads, and why it cannot be imported where it cannot.
        devices: every device torch sees, the CPU included.
        engines: each parity engine: available or why not.
    """

    version: str
    python: str
    platform: str
    packages: Mapping[str, str | None]
    torch: Mapping[str, Any]
    devices: tuple[Mapping[str, Any], ...]
    engines: Mapping[str, Mapping[str, Any]]

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "version": self.version, "python": self.python, "platform": self.platform,
                "packages": dict(self.packages), "torch": dict(self.torch),
                "devices": [dict(device) for device in self.devices],
                "engines": {name: dict(entry) for name, entry in self.engines.items()}}

    def lines(self) -> Iterator[tuple[str, str]]:
        """(name, value) pairs for people."""
        yield "eagle-convert", self.version
        yield "python", self.python
        yield "platform", self.platform
        for name, version in self.packages.items():
            yield name, version or "not installed"
        for key, value in self.torch.items():
            yield f"torch {key}", str(value)
        for device in self.devices:
            yield f"device {device['name']}", ", ".join(f"{k} {v}" for k, v in device.items() if k != "name")
        for name, entry in self.engines.items():
            yield f"engine {name}", "available" if entry["available"] else f"not available: {entry['why']}"


def environment() -> Environment:
    """Look around. Imports torch; a torch that cannot be imported is reported, not raised."""
    torch, devices = _torch()
    return Environment(__version__, platform.python_version(),
                       f"{platform.system()} {platform.release()} {platform.machine()}",
                       {name: _installed(name) for name in PACKAGES}, torch, devices,
                       {kind.word: {"available": kind.available, "why": None if kind.available else kind.why}
                        for kind in ENGINES})


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> tuple[dict[str, Any], tuple[Mapping[str, Any], ...]]:
    try:
        import torch
    except (ImportError, OSError) as error:  # a torch built for another system raises OSError
        return {"error": str(error)}, ()
    devices: list[Mapping[str, Any]] = [{"name": "cpu", "kind": platform.processor() or platform.machine(),
                                         "threads": torch.get_num_threads()}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append({"name": f"cuda:{index}", "kind": properties.name, "memory": properties.total_memory,
                        "capability": f"{properties.major}.{properties.minor}"})
    return {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}, \
        tuple(devices)
