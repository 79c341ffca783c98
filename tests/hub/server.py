"""A hub on the loopback: the part of the HTTP API that ``huggingface_hub``'s client speaks, with everything counted.

``Hub`` binds 127.0.0.1 on a free port. Large files are served the way the hub serves them: ``resolve`` answers with a
redirect to another origin (``localhost`` instead of ``127.0.0.1``), which must never see the token. Faults are rules
that are asked, in order, before each request is handled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .repos import LFS_SUFFIXES, Blob, Commit, Repo, User, World

LICENSES = {"apache-2.0", "mit", "llama2", "llama3", "llama3.1", "other", "cc-by-4.0"}
HOUSEKEEPING = "/api/agent-harnesses"  # the client asks for it once a day, whatever it is doing
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Seen:
    """One request as the hub saw it; bytes are of bodies."""

    method: str
    path: str
    status: int = 0
    received: int = 0
    sent: int = 0
    range: str | None = None
    token: str | None = None


@dataclass
class Fault:
    """What to do to a request instead of (``status``), before or after (``drop``) handling it.

    ``drop``: ``"before"`` closes the connection unhandled, ``"after"`` handles the request and closes without an
    answer, an int sends that many bytes of the answer's body and closes.
    """

    match: Callable[[Seen], bool]
    times: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    drop: str | int | None = None


class Dropped(Exception):
    """The connection was cut on purpose."""


class Hub:
    """The server. Use as a context manager; ``url`` is the endpoint."""

    def __init__(self) -> None:
        self.world = World()
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.ignore_ranges = False
        self.chunk_size: int | None = None
        self.card_warnings: list[str] = []
        self.lock = threading.Lock()
        # A fixed port lets HF_ENDPOINT name it beforehand: older clients read that in many places, once.
        port = int(os.environ.get("EAGLE_CONVERT_TEST_HUB_PORT", "0"))
        self.http = ThreadingHTTPServer(("127.0.0.1", port), type("BoundHandler", (Handler,), {"hub": self}))
        self.http.daemon_threads = True
        self.port: int = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.cdn = f"http://localhost:{self.port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def fail(self, path: str, method: str | None = None, **what: Any) -> Fault:
        """Add a fault for requests whose path contains ``path``."""
        fault = Fault(lambda seen: path in seen.path and method in (None, seen.method), **what)
        self.faults.append(fault)
        return fault

    def count(self, path: str = "", method: str | None = None) -> int:
        return sum(path in s.path and method in (None, s.method) for s in self.seen)

    def bytes_sent(self, path: str = "") -> int:
        return sum(s.sent for s in self.seen if path in s.path)

    def bytes_received(self, path: str = "") -> int:
        return sum(s.received for s in self.seen if path in s.path)

    def forget(self) -> None:
        with self.lock:
            self.seen.clear()


class Handler(BaseHTTPRequestHandler):
    """Routes one request. Handlers return nothing; they answer through :meth:`answer`."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        # A small buffer, so that "nothing was read to the end" is visible on this side.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: what matters is in ``hub.seen``."""

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        self.route, self.query = unquote(url.path), parse_qs(url.query)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip() or None
        self.record = Seen(self.command, self.path, range=self.headers.get("Range"), token=token)
        fault = None
        if self.route != HOUSEKEEPING:
            with self.hub.lock:
                self.hub.seen.append(self.record)
                fault = next((f for f in self.hub.faults if f.times > 0 and f.match(self.record)), None)
                if fault:
                    fault.times -= 1
        self.fault = fault
        try:
            if fault and fault.drop == "before":
                raise Dropped
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.record.received = len(self.body)
            if fault and fault.status:
                return self.answer(fault.status, fault.body, fault.headers)
            with self.hub.world.lock:
                self.dispatch()
        except Dropped:
            self.close_connection = True
            self.request.shutdown(socket.SHUT_RDWR)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        return None

    def dispatch(self) -> None:
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, self.route)
            if match and self.command in method.split("|"):
                getattr(self, name)(**match.groupdict())
                return
        self.answer(404, {"error": f"no route {self.command} {self.route}"})

    # answers

    def answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        self.record.status = status
        if self.fault and self.fault.drop == "after":
            raise Dropped
        cut = self.fault.drop if self.fault and isinstance(self.fault.drop, int) else None
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        if not isinstance(body, bytes):
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command == "HEAD":
            return
        view = memoryview(data)[:cut]
        for start in range(0, len(view), 1 << 16):
            chunk = view[start:start + (1 << 16)]
            self.record.sent += len(chunk)  # before, so that whoever has the bytes also finds them counted
            self.request.sendall(chunk)
        if cut is not None:
            time.sleep(0.01)
            raise Dropped

    def refuse(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer(status, {"error": message}, headers)

    # who and where

    def user(self) -> User | None:
        return self.hub.world.users.get(self.record.token or "")

    def visible(self, name: str) -> Repo | None:
        """The repository, or None after an answer that tells why not."""
        if self.record.token and not self.user():
            self.refuse(401, "Invalid credentials in Authorization header")
            return None
        repo = self.hub.world.repos.get(name)
        owner = name.split("/")[0]
        user = self.user()
        mine = user is not None and owner in (user.name, *(org for org, _ in user.orgs))
        if repo is None or (repo.private and not mine):
            if user is None:
                self.refuse(401, "Invalid username or password.")
            else:
                self.refuse(404, "Repository not found", "RepoNotFound")
            return None
        return repo

    def revision(self, name: str, revision: str) -> tuple[Repo, Commit] | None:
        repo = self.visible(name)
        if repo is None:
            return None
        commit = repo.resolve(revision)
        if commit is None:
            self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            return None
        return repo, commit

    def writable(self, name: str, *, pull_request: bool = False) -> Repo | None:
        repo = self.visible(name)
        user = self.user()
        if repo is None:
            return None
        if user is None:
            self.refuse(401, "Invalid username or password.")
            return None
        if user.role == "read" or (not user.may_write and not pull_request):
            self.refuse(403, f"You don't have the rights to write to {name}")
            return None
        return repo

    # reading

    def whoami(self) -> None:
        user = self.user()
        if user is None:
            return self.refuse(401, "Invalid credentials in Authorization header")
        token: dict[str, Any] = {"displayName": "t", "role": user.role}
        if user.role == "fineGrained":
            token["fineGrained"] = {"global": [], "scoped": [
                {"entity": {"type": kind, "name": name}, "permissions": list(permissions)}
                for kind, name, permissions in user.scopes]}
        return self.answer(200, {"type": "user", "name": user.name,
                                 "auth": {"type": "access_token", "accessToken": token},
                                 "orgs": [{"type": "org", "name": org, "roleInOrg": role} for org, role in user.orgs]})

    def auth_check(self, repo: str) -> None:
        if self.writable(repo):
            self.answer(200)

    def info(self, repo: str, revision: str = "main") -> None:
        found = self.revision(repo, revision)
        if not found:
            return
        siblings = []
        for path, blob in sorted(found[1].files.items()):
            entry: dict[str, Any] = {"rfilename": path}
            if "blobs" in self.query:
                entry |= {"size": len(blob.data), "blobId": blob.git_oid}
                if blob.lfs:
                    entry["lfs"] = {"sha256": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
            siblings.append(entry)
        self.answer(200, {"id": repo, "modelId": repo, "sha": found[1].oid, "private": found[0].private,
                          "gated": "auto" if found[0].gated else False, "siblings": siblings, "tags": []})

    def tree(self, repo: str, revision: str) -> None:
        found = self.revision(repo, revision)
        if found:
            self.answer(200, [entry_of(path, blob) for path, blob in sorted(found[1].files.items())])

    def paths_info(self, repo: str, revision: str) -> None:
        found = self.revision(repo, revision)
        if found:
            data = json.loads(self.body) if self.body[:1] == b"{" else parse_qs(self.body.decode())
            self.answer(200, [entry_of(p, found[1].files[p]) for p in data["paths"] if p in found[1].files])

    def resolve(self, repo: str, revision: str, path: str) -> None:
        found = self.revision(repo, revision)
        if not found:
            return
        if found[0].gated and not (self.user() and self.user().gates_open):  # type: ignore[union-attr]
            self.refuse(403 if self.user() else 401, f"Access to model {repo} is restricted.", "GatedRepo")
            return
        headers = {"X-Repo-Commit": found[1].oid}
        blob = found[1].files.get(path)
        if blob is None:
            self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", **headers})
            return
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.data)),
                        "Location": f"{self.hub.cdn}/cdn/{blob.sha256}?Signature=s"}
            self.answer(302, b"", headers)
            return
        self.send_ranged(blob.data, {"ETag": f'"{blob.etag}"', **headers})

    def from_cdn(self, oid: str) -> None:
        if self.headers["Host"].startswith("127.0.0.1"):
            return self.refuse(400, "the store has its own host")
        return self.send_ranged(self.hub.world.large[oid], {"ETag": f'"{oid}"'})

    def send_ranged(self, data: bytes, headers: dict[str, str]) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.record.range or "")
        if not wanted or self.hub.ignore_ranges:
            return self.answer(200, data, headers)
        start, stop = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1) + 1
        if start >= len(data):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return self.answer(206, data[start:stop], headers)

    def refs(self, repo: str) -> None:
        found = self.visible(repo)
        if found:
            self.answer(200, {"branches": [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": o}
                                           for n, o in found.refs.items() if not n.startswith("refs/")],
                              "tags": [], "converts": []})

    # writing

    def create_repo(self) -> None:
        data, user = json.loads(self.body), self.user()
        if user is None:
            return self.refuse(401, "Invalid credentials in Authorization header")
        name = f"{data.get('organization') or user.name}/{data['name']}"
        if name in self.hub.world.repos:
            return self.answer(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        if user.role == "read" or not user.may_create:
            return self.refuse(403, f"You don't have the rights to create a model under {name.split('/')[0]}")
        private = data.get("private") or data.get("visibility") == "private"
        self.hub.world.add(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=bool(private))
        return self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def create_branch(self, repo: str, branch: str) -> None:
        found = self.writable(repo)
        if found is None:
            return None
        if branch in found.refs:
            return self.refuse(409, "Reference already exists")
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        found.refs[branch] = found.refs.get(start, start)
        return self.answer(200)

    def validate_yaml(self) -> None:
        errors = card_errors(json.loads(self.body)["content"])
        self.answer(400 if errors else 200, {"errors": [{"message": m} for m in errors],
                                             "warnings": [{"message": m} for m in self.hub.card_warnings]})

    def preupload(self, repo: str, revision: str) -> None:
        found = self.writable(repo, pull_request="create_pr" in self.query)
        if found is None:
            return None
        commit = found.resolve(revision)
        if commit is None:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        answers = []
        for file in json.loads(self.body)["files"]:
            mode = "lfs" if file["path"].endswith(LFS_SUFFIXES) or file["size"] > 10 << 20 else "regular"
            old = commit.files.get(file["path"])
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False,
                            "oid": old.etag if old else None})
        return self.answer(200, {"files": answers})

    def lfs_batch(self, repo: str) -> None:
        if not self.writable(repo, pull_request=True):
            return
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.world.large:
                upload: dict[str, Any] = {"href": f"{self.hub.cdn}/store/{wanted['oid']}"}
                if self.hub.chunk_size:
                    parts = -(-wanted["size"] // self.hub.chunk_size)
                    upload["header"] = {"chunk_size": str(self.hub.chunk_size)} | {
                        str(i + 1): f"{self.hub.cdn}/store/{wanted['oid']}/part/{i + 1}" for i in range(parts)}
                entry["actions"] = {"upload": upload,
                                    "verify": {"href": f"{self.hub.url}/{repo}.git/info/lfs/objects/verify"}}
            objects.append(entry)
        self.answer(200, {"transfer": "multipart" if self.hub.chunk_size else "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if self.command == "POST":  # the completion of a multipart upload
            parts = [self.hub.world.large.pop(f"{oid}/{p['partNumber']}") for p in json.loads(self.body)["parts"]]
            self.body = b"".join(parts)
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.refuse(400, "the digest of the body is another one")
        self.hub.world.large[oid] = self.body
        return self.answer(200)

    def store_part(self, oid: str, part: str) -> None:
        self.hub.world.large[f"{oid}/{part}"] = self.body
        self.answer(200, b"", {"ETag": f'"{part}"'})

    def lfs_verify(self, repo: str) -> None:
        wanted = json.loads(self.body)
        known = len(self.hub.world.large.get(wanted["oid"], b"")) == wanted["size"]
        self.answer(200 if known else 404)

    def commit(self, repo: str, revision: str) -> None:
        pull_request = "create_pr" in self.query
        found = self.writable(repo, pull_request=pull_request)
        if found is None:
            return None
        base = found.resolve(revision)
        if base is None:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if not pull_request and header.get("parentCommit", base.oid) != base.oid:
            return self.refuse(412, "A commit has happened since. Please refresh and try again.")
        files = dict(base.files)
        for line in lines:
            problem = self.apply(files, line["key"], line["value"])
            if problem:
                return self.refuse(*problem)
        problems = card_errors(files["README.md"].data.decode()) if "README.md" in files else []
        if problems:
            return self.refuse(400, problems[0])
        ref = revision
        if pull_request:
            found.pull_requests += 1
            ref = f"refs/pr/{found.pull_requests}"
        new = found.commit(files, header["summary"], ref, base.oid)
        url = f"{self.hub.url}/{repo}/commit/{new.oid}"
        return self.answer(200, {"success": True, "commitOid": new.oid, "commitUrl": url,
                                 "pullRequestUrl": f"{self.hub.url}/{repo}/discussions/{found.pull_requests}"})

    def apply(self, files: dict[str, Blob], key: str, value: dict[str, Any]) -> tuple[Any, ...] | None:
        """One line of a commit onto ``files``; a refusal when it cannot be."""
        if key == "file":
            files[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            if value["oid"] not in self.hub.world.large:
                return 400, f"LFS pointer pointed to a file that does not exist: {value['path']}"
            files[value["path"]] = Blob(self.hub.world.large[value["oid"]], lfs=True)
        elif key == "deletedFile":
            if value["path"] not in files:
                return 404, "A file with this name doesn't exist", "EntryNotFound"
            del files[value["path"]]
        elif key == "deletedFolder":
            for path in [p for p in files if p.startswith(value["path"])]:
                del files[path]
        return None

    def xet_token(self, repo: str, revision: str) -> None:
        """A token for the Xet store, which is not played here: whoever asks it for anything is refused."""
        if self.writable(repo):
            until = int(time.time()) + 3600
            self.answer(200, {"casUrl": f"{self.hub.url}/cas", "accessToken": "xet-secret", "exp": until},
                        {"X-Xet-Cas-Url": f"{self.hub.url}/cas", "X-Xet-Access-Token": "xet-secret",
                         "X-Xet-Token-Expiration": str(until)})

    def xet_store(self, path: str) -> None:
        self.refuse(403, "the store is closed")


ROUTES = [
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create_repo"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("GET", rf"/api/models/{REPO}", "info"),
    ("GET", rf"/api/models/{REPO}/revision/(?P<revision>.+)", "info"),
    ("GET", rf"/api/models/{REPO}/auth-check/write", "auth_check"),
    ("GET", rf"/api/models/{REPO}/tree/(?P<revision>.+)", "tree"),
    ("GET", rf"/api/models/{REPO}/refs", "refs"),
    ("GET", rf"/api/models/{REPO}/xet-(?:read|write)-token/(?P<revision>.+)", "xet_token"),
    ("GET|HEAD|POST|PUT", r"/cas/(?P<path>.*)", "xet_store"),
    ("POST", rf"/api/models/{REPO}/paths-info/(?P<revision>.+)", "paths_info"),
    ("POST", rf"/api/models/{REPO}/branch/(?P<branch>.+)", "create_branch"),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>.+)", "preupload"),
    ("POST", rf"/api/models/{REPO}/commit/(?P<revision>.+)", "commit"),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/verify", "lfs_verify"),
    ("PUT|POST", r"/store/(?P<oid>[0-9a-f]{64})", "store"),
    ("PUT", r"/store/(?P<oid>[0-9a-f]{64})/part/(?P<part>\d+)", "store_part"),
    ("GET|HEAD", r"/cdn/(?P<oid>[0-9a-f]{64})", "from_cdn"),
    ("GET|HEAD", rf"/{REPO}/resolve/(?P<revision>refs/pr/\d+|[^/]+)/(?P<path>.+)", "resolve"),
]


def entry_of(path: str, blob: Blob) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(blob.data), "oid": blob.git_oid}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    return entry


def card_errors(content: str) -> list[str]:
    """What the hub's card validation says about the parts that matter here."""
    match = re.match(r"\s*---\n(.*?)\n---", content, re.S)
    if not match:
        return []
    try:
        data = yaml.safe_load(match[1]) or {}
    except yaml.YAMLError as problem:
        return [f"YAML: {problem}"]
    errors = []
    if "license" in data and data["license"] not in LICENSES:
        errors.append(f'"license" must be one of [{", ".join(sorted(LICENSES))}]')
    for key in ("datasets", "tags"):
        values = data.get(key, [])
        for i, value in enumerate(values if isinstance(values, list) else [values]):
            if not isinstance(value, str):
                errors.append(f'"{key}[{i}]" must be a string')
    bases = data.get("base_model", [])
    for base in bases if isinstance(bases, list) else [bases]:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(base)):
            errors.append(f'"base_model" with value "{base}" is not valid. Use a model id from https://hf.co/models.')
    for model in data.get("model-index", []):
        for result in model.get("results", []):
            if not result.get("metrics") or any("value" not in m or "type" not in m for m in result["metrics"]):
                errors.append('"model-index[0].results[0].metrics" is required')
    return errors
