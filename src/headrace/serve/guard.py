"""Security middleware: checks the Host header of requests and adds security headers to responses.

The page listens on loopback and has no login, so two attacks must be prevented. A foreign web site could
resolve its own name to 127.0.0.1 and read the API through the visitor's browser: only allowed Host names
are accepted. And no foreign content may run in the page or frame it: the headers forbid it.
"""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

CONTENT_SECURITY_POLICY = "; ".join(
    ("default-src 'self'", "object-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
)

SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityMiddleware:
    """ASGI middleware: refuse unknown Host names, add the security headers to every answer."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.casefold().strip("[]") for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or reject it. Called by the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                # Assets say otherwise; numbers of a moment are never worth keeping.
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if host_name(Headers(scope=scope).get("host", "")) in self._allowed:
            await self._app(scope, receive, send_guarded)
            return
        refusal = JSONResponse(
            {
                "what": "This server does not answer to the name in the Host header.",
                "why": "A name that is not on its list could be a foreign site reading through your browser.",
                "state": "Nothing was read.",
                "remedy": "Open the address that the server printed, or start it with --allow-host NAME.",
            },
            status_code=421,
        )
        await refusal(scope, receive, send_guarded)


def host_name(header: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].casefold()
    return header.partition(":")[0].casefold()
