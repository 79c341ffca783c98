"""Reading hub ids: what is fetched, from where, and what each failure is called."""

from __future__ import annotations

import hashlib
import json
import logging

import pytest

from eagle_convert.errors import HubError
from eagle_convert.hub import errors as hub_errors
from eagle_convert.hub.source import download
from eagle_convert.source import HubOptions, open_source
from eagle_convert.tensors import open_index

from .conftest import TOKEN, header_of
from .repos import User
from .server import Hub

TABLES = {"model.embed_tokens.weight": "model-00001-of-00008.safetensors",
          "lm_head.weight": "model-00008-of-00008.safetensors"}


def digests(ref: str, options: HubOptions, **how: object) -> dict[str, str]:
    """sha256 of the two tables, read through the source."""
    source = open_source(ref, hub=options, role="target", **how)  # type: ignore[arg-type]
    with open_index(source, sorted(TABLES.values())) as index:
        return {name: index.sha256(name) for name in TABLES}


def expected(files: dict[str, bytes]) -> dict[str, str]:
    from safetensors.numpy import load

    return {name: hashlib.sha256(load(files[file])[name].tobytes()).hexdigest() for name, file in TABLES.items()}


def test_two_tables_of_a_sharded_target_cost_their_bytes_and_two_headers(
        hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    assert digests("org/model", options) == expected(target)
    tables = 2 * 512 * 64 * 2
    headers = sum(len(header_of(target[file])) for file in TABLES.values())
    assert tables + headers <= hub.bytes_sent("/cdn/") <= 1.01 * (tables + headers)
    assert hub.count("/cdn/") == 6  # length, header and table, of two shards
    small = sum(len(target[f]) for f in ("config.json", "model.safetensors.index.json"))
    assert hub.bytes_sent("/resolve/") == small


def test_the_token_stays_with_the_hub(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    digests("org/model", options)
    assert {s.token for s in hub.seen if "/cdn/" in s.path} == {None}
    assert {s.token for s in hub.seen if "/cdn/" not in s.path} == {TOKEN}


def test_the_source_is_pinned_to_the_commit(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    first = hub.world.repos["org/model"].head.oid
    source = open_source("hf://org/model", hub=options, role="target")
    hub.world.add("org/model", {"config.json": b"{}", "model.safetensors": b"other"})
    assert (source.name, source.path, source.revision) == ("org/model", None, first)
    assert source.config is not None
    assert source.config["hidden_size"] == 64
    with open_index(source, [TABLES["lm_head.weight"]]) as index:
        assert index.sha256("lm_head.weight") == expected(target)["lm_head.weight"]
    again = open_source(f"org/model@{first}", hub=options, role="target")
    assert again.revision == first
    assert open_source("org/model", hub=options).revision != first


def test_many_small_reads_of_an_announced_range_are_one_request(
        hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    source = open_source("org/model", hub=options, role="target")
    with open_index(source, [TABLES["lm_head.weight"]]) as index:
        before = hub.count("/cdn/")
        pieces = [bytes(piece) for piece in index.chunks("lm_head.weight", 1000)]
        assert hub.count("/cdn/") == before + 1
    assert hashlib.sha256(b"".join(pieces)).hexdigest() == expected(target)["lm_head.weight"]


def test_a_mirror_that_ignores_ranges_is_left_at_once(hub: Hub, options: HubOptions) -> None:
    hub.world.add("org/large", {"config.json": b"{}", "model.safetensors": b"\x00" * (16 << 20)})
    hub.ignore_ranges = True
    with pytest.raises(hub_errors.RangesIgnoredError, match="ignores range") as caught:
        open_index(open_source("org/large", hub=options))
    assert "hf download org/large" in caught.value.how
    assert hub.bytes_sent("/cdn/") < 8 << 20  # what fits into the sockets' buffers


def test_a_drop_costs_one_more_request(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    source = open_source("org/model", hub=options, role="target")
    with open_index(source, [TABLES["lm_head.weight"]]) as index:
        before = hub.count("/cdn/")
        hub.fail("/cdn/", drop=30_000)
        pieces = [bytes(piece) for piece in index.chunks("lm_head.weight", 1000)]
        assert hub.count("/cdn/") == before + 2
    assert hashlib.sha256(b"".join(pieces)).hexdigest() == expected(target)["lm_head.weight"]


@pytest.mark.parametrize("cut", [0, 1, 40_000])
def test_a_connection_that_drops_half_way_is_taken_up_where_it_broke(
        cut: int, hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    source = open_source("org/model", hub=options, role="target")
    with open_index(source, [TABLES["lm_head.weight"]]) as index:
        before = hub.bytes_sent("/cdn/")
        hub.fail("/cdn/", drop=cut, times=2)
        assert index.sha256("lm_head.weight") == expected(target)["lm_head.weight"]
    assert hub.bytes_sent("/cdn/") - before <= 512 * 64 * 2 + 1000


def test_a_connection_that_always_drops_is_given_up(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    source = open_source("org/model", hub=options, role="target")
    with open_index(source, [TABLES["lm_head.weight"]]) as index:
        hub.fail("/cdn/", drop=0, times=1000)
        with pytest.raises(hub_errors.HubDownError, match="breaks again and again"):
            index.sha256("lm_head.weight")
    assert hub.count("/cdn/") < 50


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("path", ["/cdn/", "/api/models/", "/resolve/"])
def test_a_passing_fault_is_waited_out(path: str, status: int, hub: Hub, options: HubOptions,
                                       target: dict[str, bytes]) -> None:
    hub.fail(path, status=status, times=2, headers={"Retry-After": "1"})
    assert digests("org/model", options) == expected(target)


def test_a_listing_that_breaks_off_is_asked_for_again(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    hub.fail("/api/models/", drop="before", times=2)
    assert digests("org/model", options) == expected(target)


def test_what_is_cached_is_not_fetched_again(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=options.cache_dir, token=TOKEN, endpoint=hub.url)
    hub.forget()
    assert digests("org/model", options) == expected(target)
    assert [s.path.lower() for s in hub.seen] == ["/api/models/org/model?blobs=true"]


def test_download_gives_the_folder_whole_and_once(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    source = open_source("org/model", hub=options, role="target")
    for _ in range(2):
        local = download(source, options)
        assert (local.name, local.revision, local.weight_files) == (source.name, source.revision, source.weight_files)
        assert local.path is not None
        assert {f.name: f.read_bytes() for f in local.path.iterdir()} == target
    assert hub.count("/cdn/", "GET") == 8
    assert download(local, options) is local


# offline

def test_offline_reads_the_cache_and_asks_nobody(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=options.cache_dir, token=TOKEN, endpoint=hub.url)
    hub.forget()
    offline = HubOptions(cache_dir=options.cache_dir, endpoint=hub.url, offline=True)
    assert digests("org/model", offline) == expected(target)
    source = open_source("org/model", hub=offline)
    assert (source.name, source.revision) == ("org/model", hub.world.repos["org/model"].head.oid)
    assert hub.seen == []


def test_offline_by_the_environment(
        hub: Hub, options: HubOptions, target: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hub_errors.NotCachedError, match="not in the cache") as caught:
        open_source("org/model", hub=options)
    assert "hf download org/model" in caught.value.how
    assert hub.seen == []


def test_offline_after_only_headers_were_read_names_the_weights(
        hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    digests("org/model", options)
    offline = HubOptions(cache_dir=options.cache_dir, endpoint=hub.url, offline=True)
    with pytest.raises(hub_errors.NotCachedError, match="weights of org/model are not in the cache"):
        open_source("org/model", hub=offline)


def test_an_unreachable_hub_falls_back_to_the_cache(
        hub: Hub, options: HubOptions, target: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/model", cache_dir=options.cache_dir, token=TOKEN, endpoint=hub.url)
    gone = HubOptions(cache_dir=options.cache_dir, endpoint="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, "eagle_convert"):
        assert digests("org/model", gone) == expected(target)
    assert "using the cached commit" in caplog.text


# pickles

def test_a_pickled_draft_is_downloaded_whole_and_kept(hub: Hub, options: HubOptions, fixtures_dir: object) -> None:
    from pathlib import Path

    folder = Path(str(fixtures_dir)) / "layouts" / "e1-bin"
    hub.world.add("org/head", {f.name: f.read_bytes() for f in folder.iterdir()})
    for _ in range(2):
        with open_index(open_source("org/head", hub=options)) as index:
            assert index["fc.weight"].shape == (64, 128)
    assert hub.count("/cdn/", "GET") == 1


def test_a_target_with_only_pickles_says_what_it_costs_first(
        hub: Hub, options: HubOptions, caplog: pytest.LogCaptureFixture) -> None:
    hub.world.add("org/old", {"config.json": b"{}", "pytorch_model.bin": b"x" * 1_300_000})
    with caplog.at_level(logging.WARNING, "eagle_convert"):
        open_source("org/old", hub=options, role="target")
    assert "only pickled weights" in caplog.text
    assert hub.count("/cdn/") == 0


# failures, each told apart

def failure(ref: str, options: HubOptions, **how: object) -> HubError:
    with pytest.raises(HubError) as caught:
        open_index(open_source(ref, hub=options, **how)).close()  # type: ignore[arg-type]
    assert caught.value.what
    assert caught.value.where
    assert caught.value.how
    return caught.value


def test_no_such_repository(hub: Hub, options: HubOptions) -> None:
    error = failure("org/nothing", options)
    assert type(error) is hub_errors.NoSuchRepoError
    assert "no repository org/nothing" in error.what


def test_a_private_repository_without_a_token_is_not_told_from_none(hub: Hub, options: HubOptions) -> None:
    hub.world.add("org/secret", {"config.json": b"{}"}, private=True)
    error = failure("org/secret", HubOptions(cache_dir=options.cache_dir, endpoint=hub.url))
    assert type(error) is hub_errors.NoSuchRepoError
    assert "hf auth login" in error.how


def test_no_such_revision(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    assert type(failure("org/model@v9", options)) is hub_errors.NoSuchRevisionError


def test_gated(hub: Hub, options: HubOptions) -> None:
    hub.world.add("org/gated", {"config.json": b"{}", "model.safetensors": b"x"}, gated=True)
    error = failure("org/gated", options)
    assert type(error) is hub_errors.GatedError
    assert f"{hub.url}/org/gated" in error.how


def test_a_token_that_the_hub_does_not_know(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    error = failure("org/model", HubOptions(token="hf_wrong", cache_dir=options.cache_dir, endpoint=hub.url))
    assert type(error) is hub_errors.LoginError
    assert "hf_wrong" not in str(error)


def test_no_permission(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    hub.fail("/api/models/org/model", status=403, times=9, body={"error": "not on the list"})
    error = failure("org/model", options)
    assert type(error) is hub_errors.NoPermissionError
    assert "not on the list" in error.where


def test_rate_limit(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    hub.fail("/api/models/org/model", status=429, times=99, headers={"Retry-After": "120"})
    error = failure("org/model", options)
    assert type(error) is hub_errors.RateLimitError
    assert "120 seconds" in error.how


def test_a_hub_with_a_fault(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    hub.fail("/api/models/org/model", status=502, times=99)
    assert type(failure("org/model", options)) is hub_errors.HubDownError


def test_a_hub_that_is_not_there(options: HubOptions) -> None:
    error = failure("org/model", HubOptions(cache_dir=options.cache_dir, endpoint="http://127.0.0.1:9"))
    assert type(error) is hub_errors.OfflineError
    assert "HF_ENDPOINT" in error.how


def test_a_file_that_changes_size_under_the_listing(hub: Hub, options: HubOptions, target: dict[str, bytes]) -> None:
    """A proxy that answers with another file than the one that was listed."""
    from eagle_convert.errors import BrokenFileError

    source = open_source("org/model", hub=options, role="target")
    oid = hashlib.sha256(target[TABLES["lm_head.weight"]]).hexdigest()
    hub.world.large[oid] += b"more"
    with pytest.raises(BrokenFileError, match="another range"):
        open_index(source, [TABLES["lm_head.weight"]])


def test_an_index_that_names_missing_shards(hub: Hub, options: HubOptions) -> None:
    from eagle_convert.errors import SourceError

    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../secret.safetensors"}}
    hub.world.add("org/bad", {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(SourceError, match="outside of its folder"):
        open_source("org/bad", hub=options)


def test_gates_open_for_who_was_let_in(hub: Hub, options: HubOptions) -> None:
    hub.world.users[TOKEN] = User("me", gates_open=True)
    hub.world.add("org/gated", {"config.json": b'{"a": 1}'}, gated=True)
    assert open_source("org/gated", hub=options).config == {"a": 1}
