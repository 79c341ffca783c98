"""``eagle-convert push-to-hub FOLDER REPO_ID``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import _options
from ._options import common_options, connection_options, option
from ._output import Output, table

if TYPE_CHECKING:
    from eagle_convert.hub.push import PushReport
    from eagle_convert.source import HubOptions


@_options.command("push-to-hub", examples=(
    "eagle-convert push-to-hub compact me/EAGLE-Llama-3-8B-compact --dry-run",
    "eagle-convert push-to-hub compact me/EAGLE-Llama-3-8B-compact --parity report.json",
    "eagle-convert push-to-hub compact someone/EAGLE-Llama-3-8B --create-pr --replace"))
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("repo_id")
@option("--private", is_flag=True, help="Make a new repository private.")
@option("--create-pr", is_flag=True, help="Open a pull request instead of committing.")
@option("--replace", is_flag=True, help="Delete, in the same commit, the weight files that the new ones supersede.")
@option("--message", metavar="TEXT", help="The commit's message.")
@option("--dry-run", is_flag=True, help="Check everything, show the card and the files, send nothing.")
@option("--license", "license_id", metavar="ID", section="Card",
        help="The license, where the source's card does not state one (or states another).")
@option("--base-model", metavar="REPO_ID", section="Card", help="The target (default: the manifest's); @REV allowed.")
@option("--parity", type=click.Path(path_type=Path), metavar="REPORT.json", section="Card",
        help="What 'parity-check --json' printed, for the card's table and evaluation results.")
@option("--revision", metavar="BRANCH", section="Hub", help="Branch to commit to; made when it is not there.")
@connection_options
@common_options
def command(out: Output, folder: Path, repo_id: str, license_id: str | None, hub: HubOptions, **how: Any) -> None:
    """Publish FOLDER as REPO_ID on the hub, in one commit, with a model card that says how it was made.

    Folder, card, identity and permission are checked before a byte is sent; afterwards what the hub serves is
    compared with FOLDER. Files that did not change are not sent again. FOLDER without a manifest needs --base-model
    and --license.
    """
    from eagle_convert.hub.client import hide_progress
    from eagle_convert.hub.push import push_to_hub

    if out.quiet:
        hide_progress()
    report = push_to_hub(folder, repo_id.removeprefix("hf://"), license=license_id, hub=hub, **how)
    for note in report.notes:
        out.warn(note)
    out.result(report.document(), lambda: _text(out, report), report.commit_url or "dry run: nothing was sent")


def _text(out: Output, report: PushReport) -> str:
    files = table(("file", "bytes", "action"), [(f.path, f"{f.bytes:,}", f.action) for f in report.files],
                  right=(1,))
    if report.dry_run:
        head = f"dry run: {report.repo_id} ({report.revision}), nothing was sent"
        return "\n\n".join([out.style(head, "head"), files, out.style("README.md", "head"), report.card.rstrip()])
    lines = [out.style(f"{report.repo_id} ({report.revision})", "head"), files, "", report.commit_url or ""]
    if report.pull_request_url:
        lines.append(report.pull_request_url)
    return "\n".join(lines)
