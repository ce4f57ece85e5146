"""The static files of the page, served from memory.

They are few and small, so they are read and compressed once. Only files that exist at the start are
served: a path from a request never reaches the file system. URLs contain a digest of all files, so
browsers can cache them without limit, and a new version has new URLs.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"


@dataclass(frozen=True)
class Asset:
    """One file, as it is sent."""

    body: bytes
    media_type: str

    @cached_property
    def compressed(self) -> bytes:
        """Return the body in gzip form, the same bytes at every start."""
        return gzip.compress(self.body, compresslevel=9, mtime=0)

    @cached_property
    def etag(self) -> str:
        """Return the HTTP entity tag of the content."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    def respond(self, request: Request, *, immutable: bool = True) -> Response:
        """Return the file, compressed if the client accepts it, or 304 if it has not changed."""
        headers = {
            "cache-control": _IMMUTABLE if immutable else _REVALIDATE,
            "etag": self.etag,
            "vary": "accept-encoding",
        }
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


class Assets:
    """All files of `headrace/serve/console`, and those of the folder `console` of a page's package."""

    def __init__(self, page_package: str) -> None:
        files = {
            entry.name: entry.read_bytes()
            for package in ("headrace.serve", page_package)
            for entry in (resources.files(package) / "console").iterdir()
            if "." + entry.name.rpartition(".")[2] in _MEDIA_TYPES
        }
        everything = hashlib.sha256(b"".join(name.encode() + files[name] for name in sorted(files)))
        self.digest = everything.hexdigest()[:12]
        self._assets = {
            name: Asset(
                body.replace(b"{{assets}}", f"/assets/{self.digest}".encode()) if name.endswith(".html") else body,
                _MEDIA_TYPES["." + name.rpartition(".")[2]],
            )
            for name, body in files.items()
        }

    def page(self, name: str) -> Asset:
        """Return a page that this package ships."""
        return self._assets[name]

    def find(self, digest: str, name: str) -> Asset | None:
        """Return the file of a URL, or None. Pages have their own routes."""
        if digest != self.digest or name.endswith(".html"):
            return None
        return self._assets.get(name)
