"""Attributes computed at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """Attribute computed by a method at first use, once for all threads."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object, kind: type) -> Self | T:
        if owner is None:
            return self
        found: T = vars(owner).setdefault(self.name, self.make(owner))
        return found
