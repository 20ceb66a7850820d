"""Google's testbench for clients of Cloud Storage, on loopback: a third server with conditional
writes. Conditions are checked by the testbench, under a lock.

The testbench has most of Google's JSON interface and little of its XML one, which obstore speaks.
So a front translates each XML request into JSON ones: objects, their metadata and conditions,
ranges, listings in pages, and uploads in parts, which it keeps until they are complete.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import itertools
import json
import re
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from conftest import ROOT, free_port, wait_for

GUNICORN = ROOT / "build" / "testbench" / "bin" / "gunicorn"  # from `make test-google`
PAGE = 1_000  # objects in a page of a listing, as at Google
META = "x-goog-meta-"
KEY = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)


@contextlib.contextmanager
def served(bucket: str, log: Path) -> Iterator[int]:
    """The port of a server that has this bucket. `log`: a file for what the testbench prints."""
    assert GUNICORN.exists(), f"the testbench must be installed (`make test-google`): {GUNICORN}"
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            # one process: what it holds is in its memory
            [GUNICORN, f"--bind=127.0.0.1:{port}", "--threads=16", "testbench:run()"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    front = Front(port, bucket)
    threading.Thread(target=front.serve_forever, daemon=True).start()

    def makes_the_bucket() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return front.asked("POST", "/storage/v1/b", json.dumps({"name": bucket}))[0] == 200
        except OSError:
            return False

    try:
        wait_for(makes_the_bucket, 60, "the testbench")
        yield front.server_address[1]
    finally:
        front.shutdown()
        front.server_close()
        process.terminate()
        process.wait(30)


class Front(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, bucket: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.bucket = port, bucket
        self.parts: dict[str, dict[int, bytes]] = {}  # upload -> part -> content

    def asked(
        self, method: str, path: str, body: bytes | str = b"", **headers: str
    ) -> tuple[int, bytes]:
        """The testbench's status and answer; an upload is of JSON unless the headers say else."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            kind = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, body, {**kind, **headers})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def object(self, key: str) -> str:
        return f"/storage/v1/b/{self.bucket}/o/{urllib.parse.quote(key, safe='')}"

    def insert(self, key: str, content: bytes, kind: str, meta: dict[str, str], match: str) -> Any:
        """Writes an object, over generation `match` if that is given: its metadata, or a status."""
        query = {"uploadType": "multipart", "name": key}
        query |= {"ifGenerationMatch": match} if match else {}
        resource = json.dumps({"name": key, "contentType": kind, "metadata": meta})
        mark = uuid.uuid4().hex
        body = b"\r\n".join(
            (
                f"--{mark}\r\nContent-Type: application/json\r\n\r\n{resource}".encode(),
                f"--{mark}\r\nContent-Type: {kind}\r\n\r\n".encode() + content,
                f"--{mark}--\r\n".encode(),
            )
        )
        status, answer = self.asked(
            "POST",
            f"/upload/storage/v1/b/{self.bucket}/o?{urllib.parse.urlencode(query)}",
            body,
            **{"Content-Type": f"multipart/related; boundary={mark}"},
        )
        return json.loads(answer) if status == 200 else status


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def answer(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int) -> None:
        code = {404: "NoSuchKey", 412: "PreconditionFailed"}.get(status, "InternalError")
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def address(self) -> tuple[str, dict[str, str]]:
        """The key, empty for the bucket itself, and the query."""
        asked = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(asked.path[1:]).partition("/")
        if bucket != self.server.bucket:
            self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            raise ConnectionError
        return key, dict(urllib.parse.parse_qsl(asked.query, keep_blank_values=True))

    def content(self) -> bytes:
        length = int(self.headers.get("Content-Length", 0))
        found = self.rfile.read(length)
        if len(found) < length:
            raise ConnectionError  # cut off: nothing is written
        return found

    def do_PUT(self) -> None:
        (key, query), content = self.address(), self.content()
        if upload := query.get("uploadId"):
            self.server.parts[upload][int(query["partNumber"])] = content
            return self.answer(200, ETag=f'"{uuid.uuid4().hex}"')
        if source := self.headers.get("x-goog-copy-source"):
            path = self.server.object(urllib.parse.unquote(source).lstrip("/").partition("/")[2])
            _, content = self.server.asked("GET", f"{path}?alt=media")
        self.written(key, content, self.headers.get("x-goog-if-generation-match", ""))

    def written(self, key: str, content: bytes, match: str = "", body: bytes = b"") -> None:
        meta = {
            name.lower().removeprefix(META): value
            for name, value in self.headers.items()
            if name.lower().startswith(META)
        }
        kind = self.headers.get("Content-Type", "application/octet-stream")
        made = self.server.insert(key, content, kind, meta, match)
        if isinstance(made, int):
            return self.refuse(made)
        self.answer(200, body, ETag=tag(made), x_goog_generation=made["generation"])

    def do_POST(self) -> None:
        (key, query), _ = self.address(), self.content()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.parts[upload] = {}
            body = f"<InitiateMultipartUploadResult><Bucket>{self.server.bucket}</Bucket>"
            body += f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return self.answer(200, f"{body}</InitiateMultipartUploadResult>".encode())
        parts = self.server.parts.pop(query["uploadId"])
        body = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        self.written(key, b"".join(parts[i] for i in sorted(parts)), body=body.encode())

    def do_DELETE(self) -> None:
        key, query = self.address()
        if upload := query.get("uploadId"):
            self.server.parts.pop(upload, None)
            return self.answer(204)
        status, _ = self.server.asked("DELETE", self.server.object(key))
        self.answer(204) if status < 300 else self.refuse(status)

    def do_GET(self) -> None:
        key, query = self.address()
        if not key:
            return self.listed(query)
        path = self.server.object(key)
        while True:
            status, found = self.server.asked("GET", path)
            if status != 200:
                return self.refuse(status)
            meta = json.loads(found)
            content = b""
            if self.command == "HEAD" or int(meta.get("size", 0)) == 0:
                break
            status, content = self.server.asked(
                "GET", f"{path}?alt=media&generation={meta['generation']}"
            )
            if status == 200:
                break
            if status != 404:  # with which it was replaced in between
                return self.refuse(status)
        headers = {
            "ETag": tag(meta),
            "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", seconds(meta["updated"])),
            "Content-Type": meta.get("contentType", "application/octet-stream"),
            "x-goog-generation": meta["generation"],
            "Content-Length": meta.get("size", "0"),
        }
        headers |= {f"{META}{name}": value for name, value in meta["metadata"].items()}
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = asked.groups()
            begin = int(first) if first else len(content) - int(last)
            end = min(int(last) + 1 if first and last else len(content), len(content))
            if begin >= end:
                return self.answer(416, b"<Error><Code>InvalidRange</Code></Error>")
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            headers["Content-Length"] = str(end - begin)
            return self.answer(206, content[begin:end], **headers)
        self.answer(200, content, **headers)

    do_HEAD = do_GET

    def listed(self, query: dict[str, str]) -> None:
        asked = {name: query[name] for name in ("prefix", "delimiter") if query.get(name)}
        status, found = self.server.asked(
            "GET", f"/storage/v1/b/{self.server.bucket}/o?{urllib.parse.urlencode(asked)}"
        )
        if status != 200:
            return self.refuse(status)
        answer = json.loads(found)
        entries = [(item["name"], item) for item in answer.get("items", ())]
        entries += [(prefix, None) for prefix in answer.get("prefixes", ())]
        after = query.get("continuation-token") or query.get("start-after", "")
        left = sorted((e for e in entries if e[0] > after), key=lambda entry: entry[0])
        page = list(itertools.islice(left, PAGE))
        body = "<ListBucketResult>"
        for name, item in page:
            if item is None:
                body += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                continue
            body += f"<Contents><Key>{escape(name)}</Key><Size>{item.get('size', 0)}</Size>"
            body += f"<Generation>{item['generation']}</Generation><ETag>{tag(item)}</ETag>"
            body += f"<LastModified>{item['updated']}</LastModified></Contents>"
        if len(page) < len(left):
            body += f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>"
        self.answer(200, f"{body}</ListBucketResult>".encode())


def tag(meta: dict[str, Any]) -> str:
    """The ETag of Google's XML interface: the digest of the content, so it does come back."""
    return f'"{base64.b64decode(meta["md5Hash"]).hex()}"'


def seconds(updated: str) -> time.struct_time:
    return time.strptime(updated[:19], "%Y-%m-%dT%H:%M:%S")
