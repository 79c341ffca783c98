"""``eagle-convert env``: what a bug report needs."""

from __future__ import annotations

from . import _options
from ._options import common_options
from ._output import Output


@_options.command("env", examples=("eagle-convert env", "eagle-convert env --json"))
@common_options
def command(out: Output) -> None:
    """Versions, devices and engines: what a bug report needs. Nothing of the environment's secrets is read."""
    from eagle_convert.parity.environment import environment

    found = environment()
    lines = [f"{key}: {value}" for key, value in found.lines()]
    out.result(found.document(), "\n".join(lines), found.version)
