"""Faults and unusual answers of a server, by name.

A behaviour answers an exchange itself, or returns what to answer. It holds for
each request that it meets, so a retry meets it again. Those about ranges leave
a request for the whole alone, those about bodies leave HEAD alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from support.servers.messages import Answer

if TYPE_CHECKING:
    from support.servers.http import Exchange

    Behaviour = Callable[[Exchange], Answer | None]

ELSEWHERE = "/elsewhere", "/elséwhere"  # each path is here too, and served right
TICK = 0.05  # seconds

BEHAVIOURS: dict[str, Behaviour] = {}
HARMLESS: set[str] = set()  # a client reads the right bytes
DOUBTFUL: set[str] = set()  # right bytes come; a strict client may refuse them
BROKEN: set[str] = set()  # right bytes do not come, or nothing says that they are


def named(outcome: set[str], name: str, behaviour: Behaviour) -> Behaviour:
    outcome.add(name)
    BEHAVIOURS[name] = behaviour
    return behaviour


def harmless(behaviour: Behaviour) -> Behaviour:
    return named(HARMLESS, behaviour.__name__, behaviour)


def doubtful(behaviour: Behaviour) -> Behaviour:
    return named(DOUBTFUL, behaviour.__name__, behaviour)


def broken(behaviour: Behaviour) -> Behaviour:
    return named(BROKEN, behaviour.__name__, behaviour)


def of_ranges(edit: Callable[[Answer, int, int, int], Answer]) -> Behaviour:
    """Make a behaviour of a function on the 206 response of (first, last, total)."""

    @functools.wraps(edit)
    def behaviour(exchange: Exchange) -> Answer:
        right = exchange.right
        if right.status != 206:
            return right
        span, _, total = (
            right.get("Content-Range").removeprefix("bytes ").partition("/")
        )
        first, _, last = span.partition("-")
        return edit(right, int(first), int(last), int(total))

    return behaviour


def of_bodies(send: Callable[[Exchange, Answer], Answer | None]) -> Behaviour:
    """Make a behaviour of a function that runs when a body is to be sent."""

    @functools.wraps(send)
    def behaviour(exchange: Exchange) -> Answer | None:
        right = exchange.right
        if exchange.request.method != "GET" or right.status not in (200, 206):
            return right
        return send(exchange, right)

    return behaviour
