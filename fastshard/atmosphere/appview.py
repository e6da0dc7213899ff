"""AppViews: servers that index and search records of many repositories."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fastshard._util.secret import Secret
from fastshard.atmosphere.xrpc import (
    Service,
    XrpcClient,
    check_service,
    is_loopback,
)
from fastshard.errors import AppViewUnavailableError, RemoteError, XrpcError
from fastshard.remote.exchange.body import JsonBody

__all__ = ["AppView"]

DID_WEB = "did:web:"
SERVICE = "#atdata_appview"  # of the AppView's DID, to which a PDS sends procedures


class AppView:
    """A server that indexes records."""

    def __init__(self, address: str, xrpc: XrpcClient) -> None:
        if not isinstance(address, str):
            raise TypeError(f"appview must be a str, got {type(address).__name__}")
        if address.startswith(DID_WEB):
            host = unquote(address.removeprefix(DID_WEB))
            scheme = "http" if is_loopback(f"http://{host}") else "https"
            address = f"{scheme}://{host}"
        try:
            self.url = check_service(address, "appview")
        except ValueError as error:
            raise ValueError(
                f"Invalid appview value, expected a URL or a did:web: DID: {error}"
            ) from None
        self.did = DID_WEB + quote(urlsplit(self.url).netloc, safe=".-")
        self.service = Service(self.url, True)
        self._xrpc = xrpc

    def query(self, nsid: str, params: dict[str, Any]) -> dict[str, Any]:
        """Call a query of the AppView, without a token."""
        try:
            return dict(self._xrpc.query(self.service, nsid, params).fields)
        except RemoteError as error:
            raise self._failure(error) from None

    def procedure(
        self, nsid: str, given: dict[str, Any], pds: Service, token: Secret
    ) -> dict[str, Any]:
        """Call a procedure through the account's server, which signs the request."""
        headers = {"atproto-proxy": f"{self.did}{SERVICE}"}
        try:
            answer = self._xrpc.procedure(
                pds, nsid, JsonBody(given), token=token, headers=headers
            )
            return dict(answer.fields)
        except RemoteError as error:
            raise self._failure(error) from None

    def _failure(self, error: RemoteError) -> Exception:
        """Return the error of a call: that of the caller's fault unchanged."""
        if isinstance(error, XrpcError) and 400 <= (error.status or 0) < 500:
            return error
        status = "" if error.status is None else f", status {error.status}"
        return AppViewUnavailableError(self.url, f"{error.reason}{status}")

    def invalid(self, reason: str) -> AppViewUnavailableError:
        """Return the error of an invalid answer."""
        return AppViewUnavailableError(self.url, reason)

    def __repr__(self) -> str:
        return f"<AppView {self.url}>"
