"""Ways to authorise requests: each is a class, and a line in `WAYS`."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Mapping
from typing import Any, Self

from fastshard._util.paths.remote_options import RemoteOptions, Token
from fastshard.errors import FastshardError
from fastshard.remote.requests.request import Authorization, HttpRequest

__all__ = [
    "Bearer",
    "check_pickles",
    "ways_of",
]

# Headers that may be pickled.
PLAIN_HEADERS = ("user-agent", "accept-language", "referer", "from", "x-requested-with")
PICKLERS = frozenset(("cloudpickle", "dill", "ray.cloudpickle"))  # of any function


class FixedHeaders(Authorization):
    """Headers of the option ``headers``."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = _check_headers(headers)

    @classmethod
    def of(cls, options: RemoteOptions) -> Self | None:
        headers = options.get("headers")
        return cls(headers) if headers else None

    def headers(self, request: HttpRequest) -> Mapping[str, str]:
        return self._headers

    def check_pickles(self) -> None:
        for name in self._headers:
            if name.lower() not in PLAIN_HEADERS:
                raise FastshardError(
                    f"the header {name} may be secret, and is not pickled: give token= "
                    "a function instead"
                )


class Bearer(Authorization):
    """Token of the option ``token``, or of the session of a service."""

    def __init__(self, token: Token) -> None:
        if not (token is None or isinstance(token, str) or callable(token)):
            kind = type(token).__name__
            raise TypeError(f"token must be a str or a callable, got {kind}")
        self._token = token

    @classmethod
    def of(cls, options: RemoteOptions) -> Self | None:
        token = options.get("token")
        return None if token is None else cls(token)

    def headers(self, request: HttpRequest) -> Mapping[str, str]:
        token = self.reveal()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def reveal(self) -> str | None:
        """Return the token, or None; call the function that returns it."""
        token = self._token() if callable(self._token) else self._token
        token = token and token.strip()
        if token and not (token.isascii() and token.isprintable()):
            raise FastshardError("the token must be printable ASCII")
        return token

    def check_pickles(self) -> None:
        check_pickles("token", self._token)
        if isinstance(self._token, str):
            raise FastshardError(
                "a token that is a str is not pickled: give token= a function that "
                "returns it, or leave it to HF_TOKEN"
            )


WAYS: tuple[type[Authorization], ...] = (FixedHeaders, Bearer)


def ways_of(options: RemoteOptions) -> tuple[Authorization, ...]:
    """Return the ways that the options select."""
    ways = (kind.of(options) for kind in WAYS)
    return tuple(way for way in ways if way is not None)


def check_pickles(name: str, value: Any) -> None:
    """Raise an error if the function of an option does not pickle.

    Other picklers, which may pickle it, are left to try.
    """
    if not callable(value) or not sys.modules.keys().isdisjoint(PICKLERS):
        return
    try:
        pickle.dumps(value)
    except Exception as error:
        raise FastshardError(
            f"{name}= does not pickle, for worker processes ({type(error).__name__}): "
            "define its function at the top of a module"
        ) from None


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return valid headers; errors name a header, but not its value."""
    checked_headers = {}
    for name, value in headers.items():
        if not isinstance(value, str) or not re.fullmatch(
            r"[\x20-\x7e]*", value.strip()
        ):
            raise FastshardError(f"the header {name!r} must be one line of ASCII")
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise FastshardError(f"{name!r} is not a valid name of a header")
        checked_headers[name] = value.strip()
    return checked_headers
