"""What can go wrong between us and the hub: one type each, with the command that gets the user on.

``huggingface_hub`` raises its own errors, and, for what never got an answer, those of the HTTP library it is built on
(``requests`` before 1.0, ``httpx`` after). :func:`hub_errors` turns all of them into :class:`HubError` and keeps tokens
out of every text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eagle_convert.errors import HubError

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions


class NoSuchRepoError(HubError):
    """No repository of that name, or a private one that this token may not see: the hub does not tell which."""


class NoSuchRevisionError(HubError):
    """The repository exists, the branch, tag or commit does not."""


class NoSuchFileError(HubError):
    """The repository and the revision exist, the file does not."""


class GatedError(HubError):
    """The repository's files need an accepted access request."""


class LoginError(HubError):
    """The token is one that the hub does not know, or there is none."""


class NoTokenError(LoginError):
    """No token where one is needed."""


class NoPermissionError(HubError):
    """The token is known and may not do this."""


class OfflineError(HubError):
    """Offline mode is on, or the hub cannot be reached."""


class NotCachedError(OfflineError):
    """Offline, and the file is not in the cache."""


class RateLimitError(HubError):
    """Too many requests."""


class TooLargeError(HubError):
    """A file or a request is larger than the hub takes."""


class HubDownError(HubError):
    """The hub answers, and answers that it is broken (5xx), or breaks off its answers."""


class RangesIgnoredError(HubError):
    """The server sends whole files where a part was asked for."""


class CardError(HubError):
    """The hub would refuse the model card."""


class ConflictError(HubError):
    """The repository changed while we were at work."""


class XetError(HubError):
    """The upload through the Xet storage failed."""


class NotAsPushedError(HubError):
    """What the hub serves after the push is not what was pushed."""


# By name, because httpx and its successor are two packages; requests gives all of its failures one type.
_BROKEN_OFF = ("RemoteProtocolError", "ReadError", "WriteError", "ChunkedEncodingError")


@contextmanager
def hub_errors(repo_id: str, hub: HubOptions, *, doing: str = "read") -> Iterator[None]:
    """Turn what ``huggingface_hub`` raises into a :class:`HubError` about ``repo_id``.

    Args:
        hub: how the hub was reached; its token and the stored one are struck out of the texts.
        doing: ``"read"`` or ``"write"``; decides what a 403 means.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        explained = explain(error, repo_id, hub, doing)
        if explained is None:
            raise
        # The original stays out of the chain: its text and its request could show a token in a traceback.
        raise explained from None


@contextmanager
def xet_errors(repo_id: str, hub: HubOptions) -> Iterator[None]:
    """Tell failures of the Xet upload from others: they come as plain built-in exceptions out of ``hf_xet``."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if type(error).__module__ != "builtins" or not _xet_in_use():
            raise
        said = redact(f"{repo_id}: {_said(error)}", hub.token)
        raise XetError("the upload through the Xet storage failed", where=said,
                       how="run again; or with HF_HUB_DISABLE_XET=1, which uploads over plain HTTP. What arrived is "
                           "not sent again, and nothing was committed") from None


def _xet_in_use() -> bool:
    from importlib.util import find_spec

    from huggingface_hub import constants

    return find_spec("hf_xet") is not None and not getattr(constants, "HF_HUB_DISABLE_XET", True)


def explain(error: BaseException, repo_id: str, hub: HubOptions, doing: str = "read") -> HubError | None:
    """The :class:`HubError` for an exception of the hub's client; None for one that is not the hub's."""
    from huggingface_hub import errors as hf

    cause = error.__cause__ if isinstance(error, (hf.LocalEntryNotFoundError, RuntimeError)) else None
    if cause is not None and (found := explain(cause, repo_id, hub, doing)):
        return found
    status = getattr(getattr(error, "response", None), "status_code", None)
    where, page = redact(f"{repo_id}: {_said(error)}", hub.token), _page(repo_id, hub)
    if isinstance(error, hf.OfflineModeIsEnabled):
        return _offline(repo_id)
    if isinstance(error, hf.LocalEntryNotFoundError):
        return NotCachedError(f"{repo_id} is not in the cache, and the hub is not asked",
                              where=f"{repo_id}: offline mode",
                              how=f"go online once: hf download {repo_id}; or drop --offline (HF_HUB_OFFLINE)")
    if isinstance(error, hf.GatedRepoError):
        return GatedError(f"{repo_id} is gated: its files need an accepted access request", where=where,
                          how=f"ask for access at {page}, then: hf auth login (or HF_TOKEN)")
    if isinstance(error, hf.RevisionNotFoundError):
        return NoSuchRevisionError(f"{repo_id} has no such revision", where=where,
                                   how=f"see its branches and tags: git ls-remote {page}")
    if isinstance(error, hf.EntryNotFoundError):
        return NoSuchFileError(f"{repo_id} has no such file", where=where,
                               how=f"see its files: {page}/tree/main")
    if isinstance(error, hf.LocalTokenNotFoundError):
        return NoTokenError("this needs a token, and there is none", where=repo_id,
                          how="hf auth login; or set HF_TOKEN; or give --token")
    if isinstance(error, hf.HFValidationError):
        return NoSuchRepoError(f"'{repo_id}' is no repository id", where=where, how="give it as ORG/NAME")
    if isinstance(error, hf.DisabledRepoError):
        return NoPermissionError(f"{repo_id} was disabled on the hub", where=where, how="use another copy of it")
    if isinstance(error, hf.RepositoryNotFoundError):
        return _no_repo(repo_id, where)
    if status is not None:
        return _by_status(status, error, repo_id, where, doing)
    if type(error).__name__ in _BROKEN_OFF:
        return HubDownError("the hub broke off its answer", where=where, how="run again")
    if isinstance(error, transport_errors()):
        return OfflineError("the hub cannot be reached", where=where,
                            how="check the network and HF_ENDPOINT, then run again; what is in the cache: --offline")
    return None


def _by_status(status: int, error: BaseException, repo_id: str, where: str, doing: str) -> HubError:
    if status == 401:
        if "credentials" in str(error) or "user token" in str(error):
            return LoginError("the hub does not know this token", where=where,
                              how="make a new one, then: hf auth login (HF_TOKEN goes before it)")
        return _no_repo(repo_id, where)
    if status == 403:
        how = ("use a token with write access to it (hf auth login), or --create-pr" if doing == "write" else
               "use a token that may read it (hf auth login); a fine-grained token needs the repository in its list")
        return NoPermissionError(f"this token may not {doing} {repo_id}", where=where, how=how)
    if status == 404:
        return _no_repo(repo_id, where)
    if status in (409, 412):
        return ConflictError(f"{repo_id} changed in the meantime", where=where, how="run the command again")
    if status == 413:
        return TooLargeError("the hub finds this too large", where=where,
                             how="convert with a smaller --max-shard-size, then push again")
    if status == 429:
        wait = _retry_after(error)
        return RateLimitError("the hub's rate limit is reached", where=where,
                              how=f"wait {wait}, then run again; hf auth login raises the limit")
    if status >= 500:
        return HubDownError("the hub has a fault", where=where,
                            how="run again in some minutes (https://status.huggingface.co); --offline uses the cache")
    return HubError(f"the hub refused (HTTP {status})", where=where, how="see what it says; run again with -vv")


def _no_repo(repo_id: str, where: str) -> NoSuchRepoError:
    return NoSuchRepoError(f"there is no repository {repo_id}, or this token may not see it", where=where,
                           how="check the spelling; for a private one: hf auth login with a token that may read it")


def _offline(repo_id: str) -> OfflineError:
    return OfflineError("the hub is needed, and offline mode is on", where=repo_id,
                        how="drop --offline and unset HF_HUB_OFFLINE; or fill the cache: "
                            f"hf download {repo_id}")


def transport_errors() -> tuple[type[BaseException], ...]:
    """The base of the errors of the HTTP library under ``huggingface_hub`` (requests, httpx, httpx2)."""
    from huggingface_hub.errors import HfHubHTTPError

    foreign = [c for c in HfHubHTTPError.__mro__ if c.__module__.split(".")[0] not in ("huggingface_hub", "builtins")]
    return (foreign[-1], ConnectionError, TimeoutError)


def redact(text: str, token: str | None = None) -> str:
    """``text`` without the given token, the stored one, and credentials inside URLs."""
    import re

    from huggingface_hub import get_token

    for secret in (token, get_token()):
        if secret:
            text = text.replace(secret, "***")
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)


def _said(error: BaseException) -> str:
    """What the server said, on one line; else what the client says."""
    said = getattr(error, "server_message", None) or str(error) or type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    line = " ".join(said.split())
    return f"HTTP {status}: {line}" if status and f"{status}" not in line[:12] else line


def _retry_after(error: BaseException) -> str:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    seconds = headers.get("Retry-After", "")
    return f"{seconds} seconds" if seconds.isdigit() else "some minutes"


def _page(repo_id: str, hub: HubOptions) -> str:
    from huggingface_hub import constants

    return f"{redact(hub.endpoint or constants.ENDPOINT)}/{repo_id}"
