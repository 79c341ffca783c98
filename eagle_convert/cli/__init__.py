"""The ``eagle-convert`` command: an explicit tuple of commands, each loaded only when it runs.

``--help`` therefore costs click and nothing else: no numpy, no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from eagle_convert._version import __version__

from ._errors import EXIT_COULD_NOT, report
from ._output import Output


class Entry(NamedTuple):
    """A command: its name, the module of this package that holds it as ``command``, its line in the main help."""

    name: str
    module: str
    help: str


COMMANDS: tuple[Entry, ...] = (
    Entry("inspect", "inspect", "Say what a checkpoint is, and what is wrong with it."),
    Entry("convert", "convert", "Write a draft as a compact folder."),
    Entry("parity-check", "parity_check", "Prove that a draft accepts what its reference accepts, without loss."),
    Entry("metrics", "metrics", "The metric sheet of a trace, of counters, or of a server's metrics text."),
    Entry("push-to-hub", "push", "Publish a folder on the hub, with its card and evidence."),
    Entry("env", "env", "What a bug report needs: versions, devices, engines."),
)


class Main(click.Group):
    """The main group: lazy commands, and the one place where errors become messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = next((e for e in COMMANDS if e.name == name), None)
        if entry is None:
            return None
        found: click.Command = import_module(f"{__name__}.{entry.module}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if COMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None,  # type: ignore[override]
             **extra: Any) -> Any:
        """Run the command line and exit with its code."""
        args = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name or "eagle-convert", **extra)
            if sys.stdout is not None:  # closed by the caller (>&-)
                sys.stdout.flush()
        except BrokenPipeError:
            # the reader of our stdout left (| head); a second error at interpreter exit would only be noise
            sys.stdout = None
            code = 1
        except (Exception, KeyboardInterrupt) as error:
            code = _reported(error, args)
        sys.exit(code or 0)


def _reported(error: BaseException, args: Sequence[str]) -> int:
    """Say how the command ended; where stdout takes nothing more (a full disk, no reader), say that on stderr."""
    try:
        return report(error, _output_of(args))
    except OSError as unwritable:
        sys.stdout = None
        if isinstance(unwritable, BrokenPipeError):
            return EXIT_COULD_NOT
        return report(OSError(unwritable.errno, unwritable.strerror, "standard output"), Output())


def _output_of(args: Sequence[str]) -> Output:
    """The output modes that ``args`` ask for; needed before, or without, a successful parse of the command line."""
    words = args[: args.index("--")] if "--" in args else args
    short = "".join(w[1:] for w in words if w.startswith("-") and not w.startswith("--") and not w.strip("-vq"))
    verbosity = words.count("--verbose") + short.count("v")
    return Output(json="--json" in words, verbosity=verbosity, no_color="--no-color" in words)


@click.group(cls=Main, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eagle-convert")
def main() -> None:
    """Inspect, convert and prove EAGLE speculative-decoding drafts.

    SOURCE, TARGET and CANDIDATE are a local folder or file, hf://org/name[@revision], or org/name[@revision].
    Exit codes: 0 done or yes, 1 could not, 2 usage, 3 checked and the answer is no, 4 inconclusive, 130 interrupted.
    """
