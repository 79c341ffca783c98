"""What a push will say and do, worked out before anything is sent: the card's facts, what is there, what changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_convert.errors import ConfigError, HubError, UsageError

from .card import license_of
from .card_text import CardFacts
from .client import api, headers, is_offline, repo_info
from .errors import CardError, NoSuchRepoError, NoSuchRevisionError, hub_errors
from .folder import README, PushFile, PushFolder, git_oid

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions

log = logging.getLogger(__name__)

REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")
PARITY_SCHEMA = "eagle-convert/parity/1"


@dataclass(frozen=True)
class PushedFile:
    """A file of the repository after the push. ``action`` is ``uploaded``, ``unchanged`` or ``deleted``."""

    path: str
    bytes: int
    sha256: str | None
    action: str


@dataclass(frozen=True)
class Remote:
    """What the hub has: the head commit (None: no repository), and bytes and digest by path.

    The digest is the sha256 of a large file and git's id of a small one.
    """

    commit: str | None
    files: Mapping[str, tuple[int, str]]
    branch_exists: bool = True


def card_facts(found: PushFolder, repo_id: str, license: str | None, base_model: str | None,
               parity: Mapping[str, Any] | None) -> CardFacts:
    """What the card says, from the folder and the flags.

    Raises:
        UsageError: an id that is none; or something that only the user knows.
    """
    if not REPO_ID.fullmatch(repo_id):
        raise UsageError(f"'{repo_id}' is no repository id", where="REPO_ID", how="give it as ORG/NAME")
    manifest = found.manifest
    base, _, at = (base_model or "").partition("@")
    if base and not REPO_ID.fullmatch(base):
        raise UsageError(f"'{base_model}' is no hub id", where="--base-model", how="give ORG/NAME or ORG/NAME@REV")
    if manifest is None and not (base and license):
        missing = " and ".join(flag for flag, given in (("--base-model", base), ("--license", license)) if not given)
        raise UsageError(f"{found.name} has no manifest: the card needs {missing}",
                         where=f"{found.name}: no eagle_convert.json",
                         how=f"give {missing}; or push the folder that eagle-convert convert writes")
    origin = manifest.target if manifest else None
    if not base:
        if origin is None or not REPO_ID.fullmatch(origin.id):
            said = f"the manifest names '{origin.id}', a local folder" if origin else "the manifest names no target"
            raise UsageError("the card needs the target's hub id", where=said, how="give --base-model ORG/NAME")
        base = origin.id
    if origin and origin.id == base and not at:
        at = origin.revision or ""
    return CardFacts(repo_id, base, at or None, {"license": license} if license else {}, found.algorithm,
                     found.tensor_bytes, manifest, parity, found.caveats)


def read_parity(path: str | os.PathLike[str] | None) -> Mapping[str, Any] | None:
    """A parity report, checked for what the card prints of it.

    Raises:
        ConfigError: not there, not JSON, or another document.
    """
    if path is None:
        return None
    name, how = Path(path).name, "give what 'eagle-convert parity-check --json' printed"
    try:
        report = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read as a parity report", where=f"--parity: {error}", how=how) from None
    wanted = ("verdict", "settings_digest", "reference", "candidate")
    schema = report.get("schema") if isinstance(report, dict) else type(report).__name__
    if schema != PARITY_SCHEMA or any(key not in report for key in wanted):
        raise ConfigError(f"{name} is no parity report", how=how,
                          where=f"--parity: schema '{schema}', expected '{PARITY_SCHEMA}' with {', '.join(wanted)}")
    return dict(report)


def licensed(facts: CardFacts, found: PushFolder, existing: str | None, hub: HubOptions) -> CardFacts:
    """The license by whoever states it first: the flag, the card that is kept, the source's card on the hub."""
    if facts.license or (existing and license_of(existing)):
        return dataclasses.replace(facts, license=facts.license or license_of(existing or ""))
    source = found.manifest.source if found.manifest else None
    if source is None or source.revision is None or not REPO_ID.fullmatch(source.id):
        return facts
    try:
        card = _download_card(source.id, source.revision, hub)
    except HubError as error:
        log.info("the source's card cannot be read: %s", error.what)
        return facts
    return dataclasses.replace(facts, license=license_of(card))


def look(repo_id: str, revision: str, create_pr: bool, hub: HubOptions) -> Remote:
    """What the hub has on a branch; a branch that is not there yet looks like ``main``."""
    try:
        info = repo_info(repo_id, None, hub)
    except NoSuchRepoError:
        return Remote(None, {})
    if revision == "main":
        return Remote(info.sha, listing(info))
    try:
        info = repo_info(repo_id, revision, hub)
    except NoSuchRevisionError:
        if create_pr:  # a pull request against nothing
            raise
        return Remote(info.sha, listing(info), branch_exists=False)
    return Remote(info.sha, listing(info))


def listing(info: Any) -> dict[str, tuple[int, str]]:
    """Bytes and digest by path, from the hub's answer."""
    return {s.rfilename: (s.size or 0, s.lfs.sha256 if s.lfs else s.blob_id or "") for s in info.siblings or ()}


def remote_card(repo_id: str, remote: Remote, hub: HubOptions) -> str | None:
    """The repository's README.md as it is."""
    return _download_card(repo_id, remote.commit, hub) if README in remote.files else None


def _download_card(repo_id: str, revision: str | None, hub: HubOptions) -> str:
    from huggingface_hub import hf_hub_download

    with hub_errors(repo_id, hub):
        path = hf_hub_download(repo_id, README, revision=revision, cache_dir=hub.cache_dir, token=hub.token,
                               endpoint=hub.endpoint, local_files_only=is_offline(hub))
    return Path(path).read_bytes().decode("utf-8", "replace")


def validate_card(repo_id: str, card: str, hub: HubOptions) -> list[str]:
    """Let the hub judge the card; its warnings.

    The client's own calls either know only the default endpoint or ask when the upload is about to start.

    Raises:
        CardError: the hub would refuse the commit because of it.
    """
    from huggingface_hub.utils import hf_raise_for_status, http_backoff

    with hub_errors(repo_id, hub):
        answer = http_backoff("POST", f"{api(hub).endpoint}/api/validate-yaml", headers=headers(hub),
                              json={"repoType": "model", "content": card})
        if answer.status_code != 400:
            hf_raise_for_status(answer)
    try:
        said = answer.json()
    except ValueError:
        said = {}
    problems = [str(problem.get("message")) for problem in said.get("errors") or []]
    if answer.status_code == 400:
        hint = "; a license that the hub does not list goes as 'other' with license_name and license_link" \
            if any("license" in problem for problem in problems) else ""
        raise CardError("the hub would refuse this card", where=f"README.md: {'; '.join(problems) or 'HTTP 400'}",
                        how=f"correct the card's metadata (nothing was sent){hint}")
    return [f"the hub says of the card: {warning.get('message')}" for warning in said.get("warnings") or []]


def changes(found: PushFolder, card: str, remote: Remote, deleted: Sequence[str]) -> tuple[PushedFile, ...]:
    """Every file that the push is about, and what happens to it."""
    text = card.encode()
    digest = hashlib.sha256(text).hexdigest()
    same = remote.files.get(README, (0, ""))[1] in (digest, git_oid(text))
    files = [PushedFile(README, len(text), digest, "unchanged" if same else "uploaded")]
    files += [PushedFile(f.path, f.size, f.sha256, "unchanged" if is_there(f, remote) else "uploaded")
              for f in found.files]
    files += [PushedFile(path, remote.files[path][0], None, "deleted") for path in deleted]
    return tuple(sorted(files, key=lambda f: f.path))


def is_there(file: PushFile, remote: Remote) -> bool:
    """Whether the hub has these very bytes under this path."""
    size, digest = remote.files.get(file.path, (-1, ""))
    return size == file.size and digest == (file.git_oid() if len(digest) == 40 else file.sha256)
