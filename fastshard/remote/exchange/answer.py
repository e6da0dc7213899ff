"""Answers to requests, and the JSON in them: bounded in size and depth."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["MAX_JSON", "Answer", "parse_json"]

MAX_JSON = 10 << 20  # bytes
MAX_DEPTH = 100  # of lists and objects inside each other
JSON_TYPE = re.compile(r"(?:application|text)/(?:[\w.+-]*\+)?json(?:\s*;.*)?", re.ASCII)
LONE = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")  # halves of a character


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

    def json(self) -> Any:
        """Parse the body.

        Raises
        ------
        ValueError
            It is not JSON, or is nested too deep.
        """
        if self.kind and not JSON_TYPE.fullmatch(self.kind):
            found = self.headers.get("Content-Type", "")  # whole: it may hold a secret
            raise ValueError(f"expected JSON, got {found!r}")
        return parse_json(self.body)


def parse_json(data: bytes) -> Any:
    """Parse JSON of an untrusted source.

    Raises
    ------
    ValueError
        The bytes are not JSON, have a number or a text that a record cannot hold, or
        are nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None
    except ValueError as error:
        text = str(error).partition(" in position")[0]  # without a byte of it
        raise ValueError(f"expected JSON: {text[:200]}") from None
    _check_depth(value)
    if LONE.search(data):
        _check_texts(value)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += [x for x in each.values() if isinstance(x, dict | list)]
            elif isinstance(each, list):
                inner += [x for x in each if isinstance(x, dict | list)]
        if not inner:
            return
        level = inner
    raise ValueError(f"JSON is nested deeper than {MAX_DEPTH} levels")


def _check_texts(value: Any) -> None:
    """Refuse texts with half a surrogate pair, which UTF-8 cannot encode."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += [*each, *each.values()]
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, str) and not _is_text(each):
            raise ValueError("JSON has half a surrogate pair in a text")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
