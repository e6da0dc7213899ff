"""DIDs and handles: documents, their servers, confirmation of handles."""

from __future__ import annotations

import time
from typing import Any, NamedTuple
from urllib.parse import unquote

from fastshard._util.paths.urls import origin_of
from fastshard.atmosphere.at_uri import is_did, is_handle
from fastshard.atmosphere.xrpc import (
    AnswerFields,
    Service,
    XrpcClient,
    check_service,
    is_loopback,
)
from fastshard.errors import HandleNotFoundError, IdentityError, XrpcError

__all__ = ["DidDocument", "IdentityResolver"]

LIFETIME = 600.0  # seconds that an answer is kept
MOST_KEPT = 10_000  # answers
MOST_NAMES = 1000  # handles, or services, of a document
PDS = "#atproto_pds"
PDS_TYPE = "AtprotoPersonalDataServer"


class DidDocument(NamedTuple):
    """Handles and server of an account, from the document of its DID.

    Attributes
    ----------
    did : str
    handles : tuple of str
        In lower case, of ``alsoKnownAs``.
    endpoint : str or None
        URL of the account's server.
    """

    did: str
    handles: tuple[str, ...]
    endpoint: str | None


class IdentityResolver:
    """Cached resolver of handles to DIDs, and of DIDs to servers."""

    def __init__(
        self,
        xrpc: XrpcClient,
        resolving: Service,
        directory: Service,
        private_hosts: bool,
        known: frozenset[Any],
    ) -> None:
        self._xrpc = xrpc
        self._resolving = resolving
        self._directory = directory
        self._private_hosts = private_hosts
        self._known = known
        self._kept: dict[str, tuple[Any, float]] = {}

    def did_of(self, name: str) -> str:
        """Return the DID of a handle whose document confirms it; a DID unchanged."""
        if is_did(name):
            return name
        handle = name.removeprefix("@").lower()
        if not is_handle(handle):
            raise IdentityError(f"{name[:300]!r} is not a handle or a DID")
        found: str = self._keep(f"@{handle}", lambda: self._confirm(handle))
        return found

    def _confirm(self, handle: str) -> str:
        did = self._ask(handle)
        if not is_did(did):
            raise IdentityError(
                f"the handle {handle} resolves to {did!r:.80}, not a DID"
            )
        if handle not in self.document_of(did).handles:
            raise IdentityError(
                f"the handle {handle} resolves to {did}, whose document does not have "
                "it in alsoKnownAs"
            )
        return did

    def _ask(self, handle: str) -> str:
        nsid = "com.atproto.identity.resolveHandle"
        try:
            answer = self._xrpc.query(self._resolving, nsid, {"handle": handle})
        except XrpcError as error:
            if error.status not in (400, 404):
                raise
            reason = f"{error.reason}: {handle}, at {error.url}"
            raise HandleNotFoundError(reason) from None
        return answer.take("did", str)

    def document_of(self, did: str) -> DidDocument:
        """Return the document of a DID."""
        found: DidDocument = self._keep(did, lambda: self._fetch(did))
        return found

    def _fetch(self, did: str) -> DidDocument:
        service, path = self._place_of(did)
        try:
            answer = self._xrpc.document(service, path)
        except XrpcError as error:
            if error.status is None or error.status >= 500:
                raise
            raise IdentityError(f"{did} has no document: {error}") from None
        return _parse_document(did, answer)

    def _place_of(self, did: str) -> tuple[Service, str]:
        """Return the URL of a DID's document."""
        if did.startswith("did:plc:"):
            return self._directory, did
        if not did.startswith("did:web:"):
            raise IdentityError(f"{did[:300]} is not a did:plc: or did:web:")
        host = unquote(did.removeprefix("did:web:"))
        if "/" in host or ":" in did.removeprefix("did:web:"):
            raise IdentityError(f"{did[:300]}: a did:web: has no path here")
        scheme = "http" if is_loopback(f"http://{host}") else "https"
        return self._foreign(f"{scheme}://{host}", did), ".well-known/did.json"

    def service_of(self, did: str) -> Service:
        """Return the server of an account."""
        endpoint = self.document_of(did).endpoint
        if endpoint is None:
            raise IdentityError(f"the document of {did} names no server ({PDS})")
        return self._foreign(endpoint, did)

    def _foreign(self, url: str, did: str) -> Service:
        """Return a server that a DID names."""
        try:
            checked = check_service(url, f"the server of {did}")
        except ValueError as error:
            raise IdentityError(str(error)) from None
        if origin_of(checked) in self._known:
            return Service(checked, True)
        if checked.startswith("http:") and not self._private_hosts:
            raise IdentityError(
                f"the server of {did} is {checked}: http:// is refused, but for hosts "
                "of private_hosts=True"
            )
        return Service(checked, False)

    def _keep(self, key: str, find: Any) -> Any:
        """Return a cached answer, or find and cache it."""
        value, until = self._kept.get(key, (None, 0.0))
        if time.monotonic() < until:
            return value
        value = find()
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[key] = value, time.monotonic() + LIFETIME
        return value


def _parse_document(did: str, answer: AnswerFields) -> DidDocument:
    """Return the document of a DID."""
    fields = answer.fields
    if fields.get("id") != did:
        raise IdentityError(f"the document of {did} has another id, at {answer.url}")
    known, services = fields.get("alsoKnownAs", []), fields.get("service", [])
    for name, value in (("alsoKnownAs", known), ("service", services)):
        if not isinstance(value, list) or len(value) > MOST_NAMES:
            raise IdentityError(f"the document of {did}: {name!r} is not a list")
    handles = tuple(
        name.removeprefix("at://").lower()
        for name in known
        if isinstance(name, str) and name.startswith("at://")
    )
    for service in services:
        if not isinstance(service, dict) or service.get("type") != PDS_TYPE:
            continue
        if service.get("id") in (PDS, f"{did}{PDS}"):
            endpoint = service.get("serviceEndpoint")
            if not isinstance(endpoint, str):
                raise IdentityError(
                    f"the document of {did}: 'serviceEndpoint' is not a str"
                )
            return DidDocument(did, handles, endpoint)
    return DidDocument(did, handles, None)
