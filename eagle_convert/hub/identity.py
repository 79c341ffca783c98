"""Who pushes, and whether they may: asked before anything is sent. The token itself is never part of a message."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle_convert.errors import HubError

from .client import api, patiently
from .errors import LoginError, NoPermissionError, NoSuchRepoError, hub_errors

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions

WRITE = "repo.write"


@dataclass(frozen=True)
class Identity:
    """What the hub says about the token.

    Attributes:
        role: ``read``, ``write`` or ``fineGrained``; empty where the hub does not say.
        scopes: of a fine-grained token: (kind, name) -> permissions; None where the hub does not list them.
    """

    name: str
    role: str
    scopes: dict[tuple[str, str], frozenset[str]] | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.name}'s token (role {self.role or 'unknown'})"

    def may_write(self, repo_id: str, exists: bool) -> bool:
        """False only when the hub's own list says no. A new repository needs the namespace, not the repository."""
        if self.role == "read":
            return False
        if self.scopes is None:
            return True
        namespace = repo_id.split("/")[0]
        covering = [("user", namespace), ("org", namespace)] + ([("model", repo_id)] if exists else [])
        return any(WRITE in self.scopes.get(scope, frozenset()) for scope in covering)


def who_am_i(repo_id: str, hub: HubOptions) -> Identity:
    """Ask the hub whose token this is.

    Raises:
        LoginError: no token, or one the hub does not know.
    """
    said = patiently(api(hub).whoami, repo_id, hub)
    token = (said.get("auth") or {}).get("accessToken") or {}
    return Identity(str(said.get("name", "?")), str(token.get("role") or ""), _scopes(token.get("fineGrained")))


def _scopes(listed: Any) -> dict[tuple[str, str], frozenset[str]] | None:
    if not isinstance(listed, dict) or not isinstance(listed.get("scoped"), list):
        return None
    return {(str(entry["entity"].get("type")), str(entry["entity"].get("name"))): frozenset(entry["permissions"])
            for entry in listed["scoped"]}


def check_may_write(identity: Identity, repo_id: str, hub: HubOptions, *, exists: bool, create_pr: bool) -> None:
    """Refuse early what the hub would refuse at the end.

    Raises:
        NoPermissionError: with the token's role and the missing permission.
    """
    if identity.role == "read" or not (create_pr or identity.may_write(repo_id, exists)):
        raise no_permission(identity, repo_id, exists=exists)
    client = api(hub)
    if not exists or create_pr or "write" not in inspect.signature(client.auth_check).parameters:
        return
    try:
        with hub_errors(repo_id, hub, doing="write"):
            client.auth_check(repo_id, write=True)
    except (NoPermissionError, LoginError) as error:
        raise no_permission(identity, repo_id, exists=True, said=error.where) from None
    except NoSuchRepoError:
        pass  # the repository was seen a moment ago: this endpoint does not offer the check (mirrors)


def no_permission(identity: Identity, repo_id: str, *, exists: bool, said: str = "") -> NoPermissionError:
    """The refusal, in terms of what to change."""
    namespace = repo_id.split("/")[0]
    if exists:
        what = f"{identity} may not write to {repo_id}"
        missing = f"missing permission: {WRITE} on {repo_id}"
        how = "give --create-pr, or use a token with that permission"
    else:
        what = f"{identity} may not create {repo_id}"
        missing = f"missing permission: {WRITE} on the namespace {namespace} (creating repositories)"
        how = f"let somebody create {repo_id}, then push again; or use a token with that permission"
    return NoPermissionError(what, where=f"{missing}; {said}" if said else missing,
                             how=f"{how} (https://huggingface.co/settings/tokens)")


def explain_refusal(error: HubError, identity: Identity, repo_id: str, *, exists: bool) -> HubError:
    """A 403 on the way, with the role and the permission; any other error as it is."""
    if isinstance(error, NoPermissionError):
        return no_permission(identity, repo_id, exists=exists, said=error.where)
    return error
