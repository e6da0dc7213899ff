"""Answers to requests, and the JSON in them: bounded in size and depth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastshard._util.json import parse_json
from fastshard.errors import FormatError

__all__ = ["MAX_JSON", "Answer"]

MAX_JSON = 10 << 20  # bytes
JSON_TYPE = re.compile(r"(?:application|text)/(?:[\w.+-]*\+)?json(?:\s*;.*)?", re.ASCII)


class Answer:
    """An answer to a request.

    Attributes
    ----------
    status : int
    headers : Mapping of str to str
        Names in any case.
    body : bytes
        Empty where the body went to a sink.
    url : str
        Redacted.
    attempts : int
        Requests sent.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], body: bytes, url: str
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.url = url
        self.attempts = 1

    def __repr__(self) -> str:
        return f"<Answer {self.status}, {len(self.body):,} bytes, of {self.url}>"

    @property
    def kind(self) -> str:
        """The Content-Type, in lower case, at most 100 characters."""
        return self.headers.get("Content-Type", "")[:100].strip().lower()

    def json(self, *, any_type: bool = False, surrogates: bool = False) -> Any:
        """Parse the body, by default only of JSON's types; see `parse_json`."""
        if self.kind and not any_type and not JSON_TYPE.fullmatch(self.kind):
            found = self.headers.get("Content-Type", "")  # whole: it may hold a secret
            raise ValueError(f"expected JSON, got {found!r}")
        try:
            return parse_json(
                self.body, self.url, limit=MAX_JSON, surrogates=surrogates
            )
        except FormatError as error:  # without its cause, which has the text
            raise ValueError(f"expected JSON: {error.reason}") from None
