"""What commands share: the options every command takes, the hub's options, and help with grouped options.

Importing this module costs click and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from eagle_convert.errors import UsageError

from ._output import Output

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """A click option that belongs to a named section of the help page."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        self.section = section
        super().__init__(*args, **kwargs)


class Command(click.Command):
    """A command whose help shows its options by section and its examples as they are typed."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        self.examples = examples
        super().__init__(*args, **kwargs)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Common options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write_text(f"\b\n{example}")


def option(*names: str, section: str = "Options", **kwargs: Any) -> Callable[[F], F]:
    """:func:`click.option`, in a section of the help page."""
    return click.option(*names, cls=Option, section=section, **kwargs)


def common_options(function: F) -> F:
    """``--json --quiet -v --no-color``; the command gets an :class:`Output` as its first argument.

    Put it nearest to the function, below the command's own options, so that the shared ones come last in the help.
    """

    @option("--json", "as_json", is_flag=True, section="Common options",
            help="One JSON document on stdout, also when the command fails.")
    @option("--quiet", "-q", is_flag=True, section="Common options", help="The one-line answer only; no warnings.")
    @option("-v", "--verbose", count=True, section="Common options", help="Say more; -vv says everything.")
    @option("--no-color", is_flag=True, section="Common options",
            help="No colours (also: the environment variable NO_COLOR).")
    @wraps(function)
    def wrapper(*args: Any, as_json: bool, quiet: bool, verbose: int, no_color: bool, **kwargs: Any) -> Any:
        if as_json and quiet:
            raise UsageError("--json and --quiet exclude each other", where=click.get_current_context().command_path,
                             how="give one of the two")
        out = Output(json=as_json, quiet=quiet, verbosity=verbose, no_color=no_color)
        from ._logs import logs_to

        with logs_to(out):
            return function(out, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


def connection_options(function: F) -> F:
    """``--token --cache-dir --offline``; the command gets ``hub`` (a ``HubOptions``).

    What is not given is left to ``HF_TOKEN``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE`` and ``HF_ENDPOINT``.
    """

    @option("--token", metavar="TOKEN", section="Hub", help="Access token; better: HF_TOKEN or 'hf auth login'.")
    @option("--cache-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", section="Hub",
            help="The hub cache to use (default: HF_HUB_CACHE).")
    @option("--offline", is_flag=True, section="Hub", help="Use the cache only (also: HF_HUB_OFFLINE=1).")
    @wraps(function)
    def wrapper(*args: Any, token: str | None, cache_dir: Path | None, offline: bool, **kwargs: Any) -> Any:
        from eagle_convert.source import HubOptions

        hub = HubOptions(token=token, cache_dir=str(cache_dir) if cache_dir else None, offline=offline)
        return function(*args, hub=hub, **kwargs)

    return wrapper  # type: ignore[return-value]


def hub_options(function: F) -> F:
    """:func:`connection_options` and ``--revision``: what every command takes that reads a SOURCE."""
    revision = option("--revision", metavar="REV", section="Hub",
                      help="Branch, tag or commit of SOURCE (TARGET: id@REV).")
    return revision(connection_options(function))


def command(name: str, *, examples: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Command]:
    """A command of the main group. The function returns its exit code (or None for 0)."""
    return click.command(name, cls=Command, examples=examples)
