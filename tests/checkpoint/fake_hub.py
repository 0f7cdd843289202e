"""A Hub on the loopback: what its library and Pelton ask of the real one, and the ways in which that fails.

Large files are redirected to another address without the token, small ones answered at once; both know ranges.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

LARGE = 1000  # bytes; from there on a file is named by its SHA-256 and lies elsewhere
CHUNK = 100  # what comes is written in pieces of this size


def commit_of(text: str) -> str:
    """A commit's name."""
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repository:
    """Files by revision. `gated`: only with a token of `members`; `private`: unknown without one."""

    revisions: dict[str, dict[str, bytes]]
    gated: bool = False
    private: bool = False
    members: tuple[str, ...] = ()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        for name, files in self.revisions.items():
            if revision in (name, commit_of(name)):
                return commit_of(name), files
        return None


@dataclass
class FakeHub:
    """What is there, what was asked, and what goes wrong.

    `cuts`: file -> bytes after which its next answers break off, one for each; `down`: a status for all requests;
    `changed`: file -> other bytes that a bad mirror sends for it; `no_ranges`: it refuses to send a part of a file.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # (path, Range, Authorization)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, bytes] = field(default_factory=dict)
    no_ranges: bool = False
    down: int = 0
    garbled: bool = False
    url: str = ""

    def paths(self, part: str = "") -> list[str]:
        """Paths asked so far that have `part`."""
        return [path for path, _, _ in self.asked if part in path]

    def downloads(self) -> list[str]:
        """Names of files whose content was asked for, in order."""
        return [path.rpartition("/")[2] for path in self.paths("/resolve/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        self.hub.asked.append((path, self.headers.get("range", ""), token))
        if self.hub.down:
            return self._answer(self.hub.down, b"")
        words = path.strip("/").split("/")
        if words[0] == "cdn":
            return self._content(words[2], self._blob(words[1]))
        api = words[:2] == ["api", "models"]
        repo = self.hub.repositories.get("/".join(words[2:4] if api else words[:2]))
        known = repo is not None and (not repo.private or token in repo.members)
        if repo is None or not known or len(words) < 4:
            return self._error(401 if not token else 404, "RepoNotFound")
        if token == "bad":
            return self._error(401, "", "Invalid credentials in Authorization header")
        found = repo.at(words[5] if api else words[3])
        if found is None:
            return self._error(404, "RevisionNotFound")
        commit, files = found
        if api:
            return self._listing(commit, files)
        if repo.gated and token not in repo.members:
            return self._error(401 if not token else 403, "GatedRepo")
        name = "/".join(words[4:])
        if name not in files:
            return self._error(404, "EntryNotFound")
        self._resolve(commit, name, files[name])

    def _listing(self, commit: str, files: dict[str, bytes]) -> None:
        listed = []
        for name, content in files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            listed.append(entry)
        body = b"<html>" if self.hub.garbled else json.dumps({"id": "x", "sha": commit, "siblings": listed}).encode()
        self._answer(200, body)

    def _resolve(self, commit: str, name: str, content: bytes) -> None:
        if len(content) < LARGE:
            return self._content(name, content, {"X-Repo-Commit": commit, "ETag": f'"{git_hash(content)}"'})
        digest = hashlib.sha256(content).hexdigest()
        self._answer(302, b"", {
            "X-Repo-Commit": commit, "X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content)),
            "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{digest}/{name}",
        })  # fmt: skip

    def _blob(self, digest: str) -> bytes:
        for repo in self.hub.repositories.values():
            for files in repo.revisions.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == digest:
                        return content
        raise AssertionError(digest)

    def _content(self, name: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        content = self.hub.changed.get(name, content)
        start = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start and (self.hub.no_ranges or start >= len(content)):
            return self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        rest = content[start:]
        more = dict(headers or {})
        if start:
            more["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cuts = self.hub.cuts.get(name)
        self._answer(206 if start else 200, rest, more, cut=cuts.pop(0) if cuts else None)

    def _error(self, status: int, code: str, message: str = "") -> None:
        headers = {name: text for name, text in (("X-Error-Code", code), ("X-Error-Message", message)) if text}
        self._answer(status, b"", headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[:cut])
        self.wfile.flush()
        self.close_connection = True


def git_hash(content: bytes) -> str:
    """How git names a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running_hub(**repositories: Repository) -> Iterator[FakeHub]:
    """A Hub with these repositories; `__` in a name stands for the slash."""
    hub = FakeHub({name.replace("__", "/"): repository for name, repository in repositories.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(hub: FakeHub, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it the default one, in this process and those it starts, with empty caches below `base` and no token."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    variables = {
        "PELTON_CACHE": str(base / "pelton"),
        "HF_HUB_CACHE": str(base / "hub"),
        "HF_TOKEN_PATH": str(base / "token"),
        "HF_ENDPOINT": hub.url,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The library has read its variables already.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", variables["HF_HUB_CACHE"])
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", variables["HF_TOKEN_PATH"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    huggingface_hub.close_session()
