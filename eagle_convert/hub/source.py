"""A hub id as a :class:`~eagle_convert.source.Source`: what is listed, what is cached, what crosses the wire.

Config, shard index and other small files are downloaded into the hub's cache. Safetensors files are read by byte
ranges and not kept. Pickles cannot be read in part without trusting them, so they are downloaded whole. Whatever lies
in the cache already is read from there.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_convert.errors import HubError, SourceError
from eagle_convert.files.json_text import parse_object
from eagle_convert.files.ranges import LocalFile, RangeReader
from eagle_convert.files.weight_files import resolve_weights

from .client import is_offline, repo_info
from .errors import NotCachedError, OfflineError, hub_errors

if TYPE_CHECKING:
    from eagle_convert.source import HubOptions, Role, Source

log = logging.getLogger(__name__)

CONFIG = "config.json"
_RANGED = ".safetensors"
_WHOLE = (".bin", ".pt", ".pth", ".gguf")


def open_hub_source(repo_id: str, revision: str | None, hub: HubOptions, role: Role) -> Source:
    """Open a repository: one listing, the config and the shard index; no weights yet.

    Args:
        revision: branch, tag or commit; None for the default branch. The source's own is the commit it stands for.

    Raises:
        HubError: one of the types of ``hub_errors``.
        ConfigError, SourceError, BrokenFileError: as for a folder.
    """
    if is_offline(hub):
        return _from_cache(repo_id, revision, hub)
    try:
        info = repo_info(repo_id, revision, hub)
    except OfflineError as unreachable:
        try:
            source = _from_cache(repo_id, revision, hub)
        except HubError:
            raise unreachable from None
        log.warning("%s cannot be reached: using the cached commit %s", repo_id, source.revision)
        return source
    repo = _Repo(repo_id, str(info.sha), {s.rfilename: s.size for s in info.siblings or ()}, hub)
    repo.remember(revision)
    source = _source(repo_id, repo)
    _say_the_cost(source, repo, role)
    return source


def download(source: Source, hub: HubOptions) -> Source:
    """The same source as a local folder: its own files, whole, in the hub's cache (resumed, verified, kept).

    A local source comes back as it is. Needed by what runs a checkpoint; reading one does without.
    """
    if source.path is not None or source.revision is None:
        return source
    from huggingface_hub import hf_hub_download

    from eagle_convert.source import open_source

    files = sorted({*source.files, *source.weight_files} - dict(source.ignored).keys())
    with hub_errors(source.name, hub):
        paths = [hf_hub_download(source.name, file, revision=source.revision, cache_dir=hub.cache_dir,
                                 token=hub.token, endpoint=hub.endpoint) for file in files]
    local = open_source(str(Path(paths[0]).parents[files[0].count("/")]))
    return replace(local, ref=source.ref, name=source.name, revision=source.revision)


class _Repo:
    """Opens files of a repository at one commit by name."""

    def __init__(self, repo_id: str, commit: str, sizes: dict[str, int | None], hub: HubOptions) -> None:
        self.repo_id, self.commit, self.sizes, self.hub = repo_id, commit, sizes, hub

    def __call__(self, file: str) -> RangeReader:
        cached = self.cached(file)
        if cached:
            return LocalFile(cached, file)
        if file.endswith(_RANGED):
            from huggingface_hub import hf_hub_url

            from .range import RemoteFile

            url = hf_hub_url(self.repo_id, file, revision=self.commit, endpoint=self.hub.endpoint)
            return RemoteFile(url, self.size(file, url), file, self.repo_id, self.hub)
        return LocalFile(self.downloaded(file, self.commit), file)

    def cached(self, file: str) -> Path | None:
        """The file in the cache, if it is there."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo_id, file, cache_dir=self.hub.cache_dir, revision=self.commit)
        return Path(found) if isinstance(found, str) else None

    def downloaded(self, file: str, revision: str | None) -> Path:
        """The file, whole, through the hub's cache."""
        from huggingface_hub import hf_hub_download

        with hub_errors(self.repo_id, self.hub):
            return Path(hf_hub_download(self.repo_id, file, revision=revision, cache_dir=self.hub.cache_dir,
                                        token=self.hub.token, endpoint=self.hub.endpoint))

    def remember(self, revision: str | None) -> None:
        """Fetch the config under the name that was asked for, so that the cache knows what the name stood for.

        Offline, a branch can only be found through the cache's own note of its commit, and the client writes that
        note when it downloads a file by the branch's name.
        """
        if CONFIG in self.sizes and not self.cached(CONFIG):
            self.downloaded(CONFIG, revision)

    def size(self, file: str, url: str) -> int:
        known = self.sizes.get(file)
        if known is None:  # a mirror that lists names only
            from huggingface_hub import get_hf_file_metadata

            with hub_errors(self.repo_id, self.hub):
                known = get_hf_file_metadata(url, token=self.hub.token).size
        if known is None:
            raise HubError(f"the server does not say how large {file} is", where=f"{self.repo_id}: {file}",
                           how=f"use another endpoint (HF_ENDPOINT), or download it first: hf download {self.repo_id}")
        return int(known)


def _source(repo_id: str, repo: _Repo) -> Source:
    from eagle_convert.source import Source

    files = tuple(sorted(f for f in repo.sizes if "/" not in f))
    weights = resolve_weights(repo_id, files, repo, repo.sizes.__contains__)
    config: dict[str, Any] | None = None
    config_bytes = None
    if CONFIG in files:
        reader = repo(CONFIG)
        try:
            config_bytes = reader.read_at(0, reader.size)
        finally:
            reader.close()
        config = parse_object(config_bytes, CONFIG, infinite=True)
    return Source(f"hf://{repo_id}", repo_id, None, repo.commit, files, config, CONFIG if config is not None else None,
                  weights.files, weights.ignored, repo, weights.weight_map, weights.index_file, config_bytes)


def _say_the_cost(source: Source, repo: _Repo, role: Role) -> None:
    """A target is read for two tables; as pickles it has to be fetched whole, which is worth a word beforehand."""
    files = [f for f in source.weight_files if f.endswith(_WHOLE) and not repo.cached(f)]
    if role == "target" and files:
        total = sum(repo.sizes[f] or 0 for f in files)
        log.warning("%s has only pickled weights: comparing against it downloads up to %.1f GB (%d files); "
                    "a safetensors copy of the target would cost its two tables only", repo.repo_id, total / 1e9,
                    len(files))


def _from_cache(repo_id: str, revision: str | None, hub: HubOptions) -> Source:
    """The cached snapshot, read as the folder that it is."""
    from huggingface_hub import snapshot_download

    from eagle_convert.source import open_source

    with hub_errors(repo_id, hub):
        folder = Path(snapshot_download(repo_id, revision=revision, cache_dir=hub.cache_dir, local_files_only=True))
    missing = None
    try:
        local = open_source(str(folder))
        if not local.weight_files:
            missing = f"cached: {', '.join(local.files) or 'nothing'}"
    except SourceError as incomplete:
        missing = incomplete.where
    if missing is not None:
        raise NotCachedError(f"the weights of {repo_id} are not in the cache, and the hub is not asked",
                             where=f"{repo_id}: commit {folder.name}, {missing}",
                             how=f"go online once: hf download {repo_id}; or drop --offline (HF_HUB_OFFLINE)")
    return replace(local, ref=f"hf://{repo_id}", name=repo_id, revision=folder.name)
