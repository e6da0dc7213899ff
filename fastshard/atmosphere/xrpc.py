"""XRPC: queries and procedures in JSON, with checked answers.

A query is ``GET /xrpc/NSID?...``, a procedure ``POST /xrpc/NSID``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from fastshard._util.paths.urls import normalize_url
from fastshard._util.secret import Secret
from fastshard._util.texts import shorten
from fastshard.atmosphere.at_uri import is_nsid
from fastshard.errors import BlobNotFoundError, RecordNotFoundError, XrpcError
from fastshard.remote.exchange.answer import MAX_JSON, Answer
from fastshard.remote.exchange.body import Body
from fastshard.remote.exchange.exchange import HttpExchange, ServiceRequest, Sink

__all__ = ["AnswerFields", "Service", "XrpcClient", "check_service"]

T = TypeVar("T")
ATTEMPTS = 4  # for uploads, which take long
LONGEST = 300  # characters of a server's text in an error
NOT_FOUND = ("RecordNotFound", "RepoNotFound")  # names of errors
MISSING = ("Could not find repo", "Could not locate record")  # beginnings of messages


class Service(NamedTuple):
    """Address of a server.

    Attributes
    ----------
    url : str
        Without a slash at its end.
    trusted : bool
        Whether the user named it: it may be on a private network.
    """

    url: str
    trusted: bool

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.url)


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def check_service(url: str, name: str) -> str:
    """Return the URL of a server as it is used: scheme, host and port."""
    if not isinstance(url, str):
        raise TypeError(f"{name} must be a str, got {type(url).__name__}")
    try:
        normalized = normalize_url(url)
    except Exception as error:
        raise ValueError(f"{name}: {error}") from None
    parts = urlsplit(normalized)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{name} must be scheme://host:port, without a path")
    host = parts.hostname or ""
    if "" in host.removesuffix(".").split("."):
        raise ValueError(f"{name} has no valid host name")
    return f"{parts.scheme}://{parts.netloc}".lower()


class AnswerFields:
    """Fields of a JSON object of a server, with checked types.

    Attributes
    ----------
    url : str
        Of the method, for errors.
    nbytes : int
        Size of the answer that they are of.
    """

    def __init__(self, fields: Mapping[str, Any], url: str, nbytes: int = 0) -> None:
        self.fields = fields
        self.url = url
        self.nbytes = nbytes

    def take(self, name: str, kind: type[T], longest: int = 10_000) -> T:
        """Return a field; raise XrpcError if it is missing or of another type."""
        value = self.fields.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = "is missing" if value is None else f"is {type(value).__name__}"
            raise self.error(f"{name!r} {found}, expected {kind.__name__}")
        if isinstance(value, str) and len(value) > longest:
            raise self.error(f"{name!r} has {len(value):,} characters")
        return value

    def error(self, reason: str) -> XrpcError:
        """Return an error about the answer."""
        named = self.fields.get("error")  # of a status that should tell it
        if isinstance(named, str):
            return XrpcError(
                f"{shorten(named, LONGEST)}: {reason}", self.url, 200, error=named
            )
        return XrpcError(reason, self.url, 200)


class XrpcClient:
    """Calls methods of servers."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange

    def query(
        self,
        service: Service,
        nsid: str,
        params: Mapping[str, Any],
        seconds: float | None = None,
    ) -> AnswerFields:
        """Call a query; `seconds` is its time limit, as of a `ServiceRequest`."""
        url = _url(service, nsid, params)
        return self._call(service, ServiceRequest("GET", url, seconds=seconds))

    def procedure(
        self,
        service: Service,
        nsid: str,
        body: Body | None,
        *,
        token: Secret | None = None,
        headers: dict[str, str] | None = None,
        repeatable: bool = False,
        seconds: float | None = None,
    ) -> AnswerFields:
        """Call a procedure; a token is sent to this server only."""
        request = ServiceRequest(
            "POST",
            _url(service, nsid, {}),
            token=token,
            headers=headers,
            body=body,
            repeatable=repeatable,
            attempts=ATTEMPTS,
            seconds=seconds,
        )
        return self._call(service, request)

    def download(
        self,
        service: Service,
        nsid: str,
        params: Mapping[str, Any],
        open_sink: Callable[[], Sink],
        *,
        most: int,
    ) -> None:
        """Call a query whose answer is bytes."""
        url = _url(service, nsid, params)
        request = ServiceRequest(
            "GET", url, most=most, open_sink=open_sink, attempts=ATTEMPTS
        )
        answer = self._exchange.send(request, trusted=service.trusted)
        if answer.status != 200:
            raise _refusal(answer, request, _method_url(request))

    def document(self, service: Service, path: str) -> AnswerFields:
        """Return a JSON object at a path of a server."""
        request = ServiceRequest("GET", f"{service.url}/{path}", most=MAX_JSON // 10)
        return self._call(service, request)

    def _call(self, service: Service, request: ServiceRequest) -> AnswerFields:
        answer = self._exchange.send(request, trusted=service.trusted)
        url = _method_url(request)
        if answer.status != 200:
            raise _refusal(answer, request, url)
        try:
            value = answer.json()
        except ValueError as error:
            reason = shorten(request.redact(str(error)), LONGEST)
        else:
            if isinstance(value, dict) and not _is_error(value):
                return AnswerFields(value, url, len(answer.body))
            if isinstance(value, dict):
                raise _refusal(answer, request, url)
            reason = f"expected a JSON object, got {type(value).__name__}"
        raise XrpcError(reason, url, 200, answer.attempts)


def _url(service: Service, nsid: str, params: Mapping[str, Any]) -> str:
    if not is_nsid(nsid):
        raise ValueError(f"{shorten(nsid, LONGEST)!r} is not the name of a method")
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value is not None
    }
    query = urlencode(given, doseq=True)
    return f"{service.url}/xrpc/{nsid}" + (f"?{query}" if query else "")


def _method_url(request: ServiceRequest) -> str:
    return request.url.redacted.removesuffix("?...")


def _is_error(fields: dict[str, Any]) -> bool:
    """Return whether an answer is an error, whatever its status."""
    return isinstance(fields.get("error"), str) and fields.keys() <= {
        "error",
        "message",
    }


def _refusal(answer: Answer, request: ServiceRequest, url: str) -> XrpcError:
    """Return the error in an answer."""
    name, message = "", "the server refused the request"
    try:
        fields = answer.json() if answer.body else {}
    except ValueError:
        fields = {}
    if isinstance(fields, dict):
        if isinstance(fields.get("error"), str):
            name = shorten(request.redact(fields["error"]), LONGEST)
        if isinstance(fields.get("message"), str) and fields["message"]:
            message = shorten(request.redact(fields["message"]), LONGEST)
        elif name:
            message = name
    kind: type[XrpcError] = XrpcError
    if message.startswith("Blob not found") or name == "BlobNotFound":
        kind = BlobNotFoundError
    elif name in NOT_FOUND or message.startswith(MISSING):
        kind = RecordNotFoundError
    return kind(message, url, answer.status, answer.attempts, error=name)
