"""Assets of the console: style sheets, scripts and their licences, packaged with it.

The path of an asset contains a digest of its content, so browsers cache it for a year. Assets are
compressed once, when the console is created.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from starlette.responses import Response

from penstock.base.http_routes import Routes
from penstock.broker.admin.access import OPEN, Needs

if TYPE_CHECKING:
    from starlette.requests import Request

DIRECTORY: Final = Path(__file__).parent / "assets"
PATH: Final = "/console/assets"
CACHE: Final = "public, max-age=31536000, immutable"
JOINED: Final = {"htmx-sse.js": ("htmx.min.js", "hx-sse.min.js")}
"""Assets made of several files. htmx starts soon after its file has run, so its extension is in the
same asset."""
COMPRESSED_BYTES_MIN: Final = 512
"""Size below which a response is not compressed, because it fits into one packet."""
_DIGEST_CHARS: Final = 12
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(Struct, frozen=True, kw_only=True):
    """Packaged file; `path` has the digest of its `content`."""

    path: str
    media_type: str
    content: bytes
    compressed: bytes


def read_assets() -> dict[str, Asset]:
    """Read all assets, by file name."""
    files = {file.name: file.read_bytes() for file in sorted(DIRECTORY.iterdir())}
    joined = {name: b"\n".join([files[part] for part in parts]) for name, parts in JOINED.items()}
    return {name: _asset(name, content) for name, content in (files | joined).items()}


def _asset(name: str, content: bytes) -> Asset:
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]
    return Asset(
        path=f"{PATH}/{digest}/{name}",
        media_type=_TYPES[Path(name).suffix],
        content=content,
        compressed=gzip.compress(content, mtime=0),
    )


def accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


class AssetViews(Struct, frozen=True, kw_only=True):
    assets: dict[str, Asset]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add(f"GET {PATH}/{{digest}}/{{name}}", OPEN)
    async def asset(self, request: Request) -> Response:
        """Return an asset; its path is the one in the current pages."""
        asset = self.assets.get(request.path_params["name"])
        if asset is None or asset.path != request.url.path:
            return Response("no such asset", 404, media_type="text/plain")
        headers = {"cache-control": CACHE, "vary": "accept-encoding"}
        content = asset.content
        if len(content) >= COMPRESSED_BYTES_MIN and accepts_gzip(request):
            content, headers["content-encoding"] = asset.compressed, "gzip"
        return Response(content, media_type=asset.media_type, headers=headers)
