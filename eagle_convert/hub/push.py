"""``push-to-hub``: everything is checked before a byte is sent, one commit carries it, and it is read back afterwards.

The order is the point. Folder and card are validated locally; then the hub is asked who we are, whether we may write,
what is there already and whether it would take the card; only then is anything created or sent. What was uploaded by
an interrupted push lies in the hub's store and is not sent again.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_convert._version import __version__
from eagle_convert.errors import HubError
from eagle_convert.source import HubOptions

from .card import compose
from .client import api, is_offline, repo_info
from .errors import NotAsPushedError, NoTokenError, OfflineError, hub_errors, xet_errors
from .folder import README, PushFile, PushFolder, read_folder, superseded
from .identity import Identity, check_may_write, explain_refusal, who_am_i
from .plan import (
    PushedFile,
    Remote,
    card_facts,
    changes,
    is_there,
    licensed,
    listing,
    look,
    read_parity,
    remote_card,
    validate_card,
)
from .range import RemoteFile

SCHEMA = "eagle-convert/push/1"


@dataclass(frozen=True)
class PushReport:
    """What was done, or with ``dry_run`` would be.

    Attributes:
        revision: the branch, or ``refs/pr/N``.
        commit: the commit that holds the files; None with ``dry_run``.
        card: the whole README.md.
        notes: what the user should know.
    """

    repo_id: str
    revision: str
    files: tuple[PushedFile, ...]
    card: str
    dry_run: bool
    notes: tuple[str, ...] = ()
    commit: str | None = None
    commit_url: str | None = None
    pull_request_url: str | None = None

    def document(self) -> dict[str, Any]:
        """``eagle-convert/push/1``."""
        return {"schema": SCHEMA, "repo_id": self.repo_id, "revision": self.revision, "commit": self.commit,
                "commit_url": self.commit_url, "pull_request_url": self.pull_request_url,
                "files": [dataclasses.asdict(file) for file in self.files], "card": self.card,
                "dry_run": self.dry_run, "warnings": list(self.notes)}


def push_to_hub(folder: str | os.PathLike[str], repo_id: str, *, revision: str | None = None, private: bool = False,
                create_pr: bool = False, replace: bool = False, license: str | None = None,
                base_model: str | None = None, parity: str | os.PathLike[str] | None = None,
                message: str | None = None, dry_run: bool = False, hub: HubOptions | None = None) -> PushReport:
    """Publish a folder with its evidence.

    Args:
        revision: branch; made when it is not there. None: ``main``.
        create_pr: open a pull request instead of committing to the branch.
        replace: delete, in the same commit, the weight files that the pushed ones supersede, and nothing else.
        license: the card's; else the folder's card, the repository's, or the source's decides. Never invented.
        base_model: hub id of the target, ``@revision`` allowed; else the manifest's.
        parity: an ``eagle-convert/parity/1`` report for the card.
        dry_run: do everything but create, send and commit.

    Raises:
        UsageError: the folder has no manifest and the card lacks what only the user can say.
        HubError: one of the types of ``hub_errors``; nothing was committed, except where it says so.
        EagleConvertError: the folder is not one that can be pushed.
    """
    hub, branch = hub or HubOptions(), revision or "main"
    found = read_folder(Path(folder))
    facts = card_facts(found, repo_id, license, base_model, read_parity(parity))
    notes = [f"not pushed, hidden: {path}" for path in found.left_out]
    try:
        if is_offline(hub):
            raise OfflineError("a push needs the hub, and offline mode is on", where=repo_id,
                               how="drop --offline and unset HF_HUB_OFFLINE; --dry-run shows what would be pushed")
        identity = who_am_i(repo_id, hub)
    except (OfflineError, NoTokenError) as error:
        if not dry_run:
            raise
        notes.append(f"{error.what}: permission, card and the repository's files were not checked")
        card = compose(licensed(facts, found, found.readme, hub), found.readme)
        return PushReport(repo_id, branch, changes(found, card, Remote(None, {}), ()), card, True, tuple(notes))
    remote = look(repo_id, branch, create_pr, hub)
    check_may_write(identity, repo_id, hub, exists=remote.commit is not None, create_pr=create_pr)
    existing = found.readme if found.readme is not None else remote_card(repo_id, remote, hub)
    facts = licensed(facts, found, existing, hub)
    card = compose(facts, existing)
    notes += validate_card(repo_id, card, hub)
    if facts.parity and facts.parity["verdict"] != "pass":
        notes.append(f"the card publishes a parity verdict that is no pass: {facts.parity['verdict']}")
    if not facts.license:
        notes.append("the card states no license, because the source's card states none: give --license ID")
    old, beside = superseded(remote.files, [f.path for f in found.files])
    if old and not replace:
        notes.append(f"older weights stay beside the new ones, and a loader may take them: {', '.join(old)}; "
                     "--replace deletes exactly these")
    if beside:
        notes.append(f"left alone, but vLLM reads every .safetensors of a folder: {', '.join(beside)}")
    plan = PushReport(repo_id, branch, changes(found, card, remote, old if replace else ()), card, dry_run,
                      tuple(notes))
    if dry_run:
        return plan
    parent = _prepare(plan, identity, remote, hub, private=private)
    done = _commit(plan, identity, found, parent, hub, create_pr=create_pr,
                   message=message or f"Upload {found.name} with eagle-convert {__version__}")
    _read_back(done, found, hub)
    return done


def _prepare(plan: PushReport, identity: Identity, remote: Remote, hub: HubOptions, *, private: bool) -> str:
    """Make the repository and the branch where they are not there; the commit to build on."""
    client, parent = api(hub), remote.commit
    try:
        with hub_errors(plan.repo_id, hub, doing="write"):
            if parent is None:
                client.create_repo(plan.repo_id, private=private, exist_ok=True)
                parent = str(repo_info(plan.repo_id, None, hub).sha)
            if plan.revision != "main" and not (remote.commit and remote.branch_exists):
                client.create_branch(plan.repo_id, branch=plan.revision, exist_ok=True)
    except HubError as error:
        raise explain_refusal(error, identity, plan.repo_id, exists=remote.commit is not None) from None
    return parent


def _commit(plan: PushReport, identity: Identity, found: PushFolder, parent: str, hub: HubOptions, *,
            create_pr: bool, message: str) -> PushReport:
    """One commit with what changed; none when nothing did."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    client = api(hub)
    local: dict[str, str | bytes] = {f.path: str(f.local) for f in found.files} | {README: plan.card.encode()}
    operations = [CommitOperationDelete(path_in_repo=f.path) if f.action == "deleted" else
                  CommitOperationAdd(path_in_repo=f.path, path_or_fileobj=local[f.path])
                  for f in plan.files if f.action != "unchanged"]
    if not operations:
        return dataclasses.replace(plan, commit=parent, commit_url=f"{client.endpoint}/{plan.repo_id}/commit/{parent}",
                                   notes=(*plan.notes, "nothing changed: no commit was made"))
    try:
        with (hub_errors(plan.repo_id, hub, doing="write"), xet_errors(plan.repo_id, hub),
              warnings.catch_warnings()):
            warnings.simplefilter("ignore")  # the card's warnings were reported already
            info = client.create_commit(plan.repo_id, operations, commit_message=message, revision=plan.revision,
                                        create_pr=create_pr, parent_commit=parent)
    except HubError as error:
        raise explain_refusal(error, identity, plan.repo_id, exists=True) from None
    return dataclasses.replace(plan, commit=str(info.oid), commit_url=str(info.commit_url),
                               pull_request_url=info.pr_url,
                               revision=str(info.pr_revision) if create_pr else plan.revision)


def _read_back(done: PushReport, found: PushFolder, hub: HubOptions) -> None:
    """Compare what the hub serves with what lies here: every digest that it lists, every weight file's header."""
    at = done.revision if done.pull_request_url else done.commit
    try:
        remote = Remote(done.commit, listing(repo_info(done.repo_id, at, hub)))
        wrong = [f"{f.path}: still there" for f in done.files if f.action == "deleted" and f.path in remote.files]
        wrong += [f"{f.path}: sha256 {f.sha256} here, {remote.files.get(f.path, (0, 'nothing'))[1]} there"
                  for f in found.files if not is_there(f, remote)]
        wrong += [f"{f.path}: another header is served" for f in found.files
                  if f.path in found.weights and f.path.endswith(".safetensors")
                  and _served_header(f, done.repo_id, at, hub) != f.header()]
    except HubError as error:
        raise type(error)(f"pushed as commit {done.commit}, but it could not be read back: {error.what}",
                          where=error.where, how=f"check it later: eagle-convert inspect {done.repo_id}@{done.commit}"
                          ) from None
    if wrong:
        raise NotAsPushedError(f"commit {done.commit} is not what was pushed", where="; ".join(wrong),
                               how="push again, and do not use that commit")


def _served_header(file: PushFile, repo_id: str, revision: str | None, hub: HubOptions) -> bytes:
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo_id, file.path, revision=revision, endpoint=hub.endpoint)
    served = RemoteFile(url, file.size, file.path, repo_id, hub)
    try:
        return served.read_at(0, len(file.header()))
    finally:
        served.close()
