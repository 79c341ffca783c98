"""What a number was measured on: printed beside every result."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe(folder: str | Path = ".") -> dict[str, object]:
    """CPU model, cores, memory, kernel, Python, and the file system of ``folder``."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    flags = re.search(r"flags\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "sha_instructions": bool(flags and "sha_ni" in flags[1].split()),
        "memory_gb": round(int(memory[1]) / 1e6, 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": _file_system(Path(folder).resolve()),
        "load_average": os.getloadavg()[0],
    }


def _file_system(folder: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [(point, kind) for point, kind in mounts if folder.is_relative_to(point)]
    return max(fitting, key=lambda m: len(m[0]))[1]
