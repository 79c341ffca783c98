"""The hub's client, set up from our options. ``huggingface_hub`` is imported when a hub id is first touched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from eagle_convert._version import __version__

from .errors import HubDownError, RateLimitError, hub_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from eagle_convert.source import HubOptions

LIBRARY = "eagle-convert"
PAUSES = (1.0, 2.0, 4.0)
T = TypeVar("T")


def api(hub: HubOptions) -> HfApi:
    """The client; what ``hub`` leaves out comes from ``HF_ENDPOINT``, ``HF_TOKEN`` or the stored login."""
    from huggingface_hub import HfApi

    if sys.stderr is None or not sys.stderr.isatty():
        hide_progress()  # the client draws them into log files too
    return HfApi(endpoint=hub.endpoint, token=hub.token, library_name=LIBRARY, library_version=__version__)


def hide_progress() -> None:
    """No progress bars of the client's, unless the environment asks for them."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()


def is_offline(hub: HubOptions) -> bool:
    """Whether the hub may not be asked: ``--offline`` or ``HF_HUB_OFFLINE``."""
    from huggingface_hub import constants

    return bool(hub.offline or constants.HF_HUB_OFFLINE)


def headers(hub: HubOptions) -> dict[str, str]:
    """The request headers, the token among them. Never print this."""
    from huggingface_hub.utils import build_hf_headers

    made: dict[str, str] = build_hf_headers(token=hub.token, library_name=LIBRARY, library_version=__version__)
    return made


def repo_info(repo_id: str, revision: str | None, hub: HubOptions) -> Any:
    """A repository's commit and files, with sizes and digests.

    Raises:
        HubError: one of the types of ``hub_errors``.
    """
    return patiently(lambda: api(hub).model_info(repo_id, revision=revision, files_metadata=True), repo_id, hub)


def patiently(question: Callable[[], T], repo_id: str, hub: HubOptions) -> T:
    """Ask, and ask again after a pause where the hub has a passing fault; the client repeats downloads only."""
    for pause in PAUSES:
        try:
            with hub_errors(repo_id, hub):
                return question()
        except (HubDownError, RateLimitError):
            time.sleep(pause)
    with hub_errors(repo_id, hub):
        return question()


@contextmanager
def stream(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """A GET whose body is not read yet, with the client's own retries and back-off (429, 5xx, no connection)."""
    from huggingface_hub import constants, utils

    how = {"headers": headers, "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT,
           "retry_on_status_codes": (408, 429, 500, 502, 503, 504)}
    if hasattr(utils, "http_stream_backoff"):  # 1.0 and later: httpx
        with utils.http_stream_backoff("GET", url, **how) as response:
            yield response
    else:
        with utils.http_backoff("GET", url, stream=True, **how) as response:
            yield response


def body(response: Any) -> Iterator[bytes]:
    """The pieces of a streamed body as they arrive."""
    chunks: Iterator[bytes] = (response.iter_bytes() if hasattr(response, "iter_bytes")
                               else response.iter_content(chunk_size=1 << 16))
    return chunks
