"""Sessions of accounts: tokens, and their text form."""

from __future__ import annotations

from typing import NoReturn

from fastshard._util.secret import Secret
from fastshard.atmosphere.at_uri import is_did, is_handle
from fastshard.atmosphere.xrpc import AnswerFields, Service, check_service
from fastshard.errors import SessionError

__all__ = ["Session"]

SEPARATOR = ":::"  # separator in a session's text, as the SDK writes it
LONGEST_TOKEN = 8192  # characters


class Session:
    """Tokens of an account, and their server."""

    __slots__ = ("access", "did", "handle", "refresh", "service")

    def __init__(
        self, did: str, handle: str, service: Service, access: Secret, refresh: Secret
    ) -> None:
        self.did = did
        self.handle = handle
        self.service = service
        self.access = access
        self.refresh = refresh

    @classmethod
    def of_answer(cls, answer: AnswerFields, service: Service) -> Session:
        """Return the session of a server's answer."""
        did, handle = answer.take("did", str), answer.take("handle", str)
        if not is_did(did):
            raise answer.error("'did' is not a DID")
        if not is_handle(handle):
            raise answer.error("'handle' is not a handle")
        access = _token(answer.fields.get("accessJwt"))
        refresh = _token(answer.fields.get("refreshJwt"))
        if access is None:
            raise answer.error("'accessJwt' is not a token")
        if refresh is None:
            raise answer.error("'refreshJwt' is not a token")
        return cls(did, handle, service, access, refresh)

    @classmethod
    def parse(cls, text: Secret, default: str) -> Session:
        """Parse the text of a session."""
        handle, did, access, refresh, url = _split(text)
        if access is None or refresh is None:
            raise SessionError("the text is not an exported session")
        if not is_did(did) or not is_handle(handle):
            raise SessionError("the text of the session has no DID and handle")
        try:
            service = Service(
                check_service(url or default, "the session's server"), True
            )
        except ValueError as error:
            raise SessionError(str(error)) from None
        return cls(did, handle, service, access, refresh)

    def export(self) -> str:
        """Return the text of the session, with its tokens."""
        tokens = self.access.reveal(), self.refresh.reveal()
        return SEPARATOR.join((self.handle, self.did, *tokens, self.service.url))

    def __repr__(self) -> str:
        return f"<Session of {self.handle} at {self.service.url}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session does not pickle: it has tokens")


# No frame that raises has a token among its variables: tracebacks may show them.


def _split(text: Secret) -> tuple[str, str, Secret | None, Secret | None, str]:
    """Return handle, DID, tokens and URL of a session's text; None without a token."""
    fields = text.reveal().split(SEPARATOR)
    if len(fields) not in (4, 5):
        return "", "", None, None, ""
    handle, did, access, refresh, *url = fields
    return handle, did, _token(access), _token(refresh), "".join(url)


def _token(text: object) -> Secret | None:
    """Return a valid token, or None."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_TOKEN:
        return None
    if not text.isascii() or not text.isprintable() or " " in text:
        return None
    return Secret(text)
