"""A hub of models and data on this machine: what `huggingface_hub` and `datasets` ask, answered from a folder.

`HF_ENDPOINT` leads them here. Repositories are folders: `models/OWNER/NAME`, `datasets/OWNER/NAME`, `spaces/OWNER/NAME`;
one of a revision other than main has its name behind it, `models/OWNER/NAME@v1`.
"""

import contextlib
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

KINDS = ("models", "datasets", "spaces")
COMMIT = "0" * 40


class FakeHub:
    """Serves `root` while entered; `address` is what HF_ENDPOINT is set to."""

    def __init__(self, root: Path):
        self.asked: list[str] = []
        """Method and path of each request."""
        self.missing: list[str] = []
        """Those without an answer."""
        self.refused: dict[str, tuple[int, dict[str, str]]] = {}
        """Repository → status and headers with which all its requests are answered."""
        self.late: dict[str, float] = {}
        """Repository → seconds that its answers take."""
        hub = self

        class Answers(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(b"")

            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def log_message(self, *_: object) -> None:
                """Not on stderr."""

            def _answer(self, body: bytes) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                address = urlsplit(self.path)
                path = unquote(address.path).strip("/")
                time.sleep(next((seconds for name, seconds in hub.late.items() if name in path), 0))
                status, headers = next((answer for name, answer in hub.refused.items() if name in path), (200, {}))
                content = None
                if status == 200:
                    content, headers = _content(root, path, address.query, body)
                    status = 404 if content is None else 200
                if content is None:
                    hub.missing.append(f"{self.command} {self.path}")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                if self.command != "HEAD" and content:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked did not wait
                        self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeHub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _content(root: Path, path: str, query: str, body: bytes) -> tuple[bytes | None, dict[str, str]]:
    """What a path answers, and its headers; None where there is nothing."""
    parts = path.split("/")
    if parts[0] == "api" and len(parts) > 2 and parts[1] in KINDS:
        answer = _description(root / parts[1], parts[2:], body, "recursive=true" in query.lower())
        if answer is None:
            return None, {"X-Error-Code": "RepoNotFound"}
        return json.dumps(answer).encode(), {"Content-Type": "application/json"}
    kind, parts = (parts[0], parts[1:]) if parts[0] in KINDS else ("models", parts)
    if "resolve" not in parts:
        return None, {}
    at = parts.index("resolve")
    repository, revision, commit = (root / kind).joinpath(*parts[:at]), parts[at + 1], COMMIT
    if not repository.is_dir():
        return None, {"X-Error-Code": "RepoNotFound"}
    others = {path.name.partition("@")[2]: path for path in repository.parent.glob(f"{repository.name}@*")}
    others |= {hashlib.sha1(name.encode()).hexdigest(): path for name, path in others.items()}
    if revision in others:
        repository = others[revision]
        commit = hashlib.sha1(repository.name.partition("@")[2].encode()).hexdigest()
    elif revision not in ("main", COMMIT):
        return None, {"X-Error-Code": "RevisionNotFound"}
    file = repository.joinpath(*parts[at + 2 :])
    if not file.is_file():
        return None, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
    content = file.read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
    return content, headers


def _description(repositories: Path, parts: list[str], body: bytes, is_recursive: bool) -> object:
    """The hub's document about a repository or some of its files."""
    length = next((n for n in (2, 1) if len(parts) >= n and repositories.joinpath(*parts[:n]).is_dir()), 0)
    if not length:
        return None
    folder, rest = repositories.joinpath(*parts[:length]), parts[length:]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if rest[:1] == ["tree"]:
        there = folder.joinpath(*rest[2:])
        return [_entry(folder, path) for path in sorted(there.rglob("*") if is_recursive else there.glob("*"))]
    if rest[:1] == ["paths-info"]:
        wanted = json.loads(body)["paths"]
        return [_entry(folder, path) for path in map(folder.joinpath, wanted) if path.exists()]
    commit = COMMIT
    if rest[:1] == ["revision"] and rest[1:] not in (["main"], [COMMIT]):
        commit = hashlib.sha1(rest[1].encode()).hexdigest()
        if not folder.with_name(f"{folder.name}@{rest[1]}").is_dir():
            return None
    siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
    name = "/".join(parts[:length])
    return {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}


def _entry(folder: Path, path: Path) -> dict[str, object]:
    name = str(path.relative_to(folder))
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
    content = path.read_bytes()
    digest = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": digest}
