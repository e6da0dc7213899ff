"""Annotations of fields: resolved when first needed."""

from __future__ import annotations

import builtins
import dataclasses
import sys
import types
import typing
from typing import Annotated, Any, Final, Generic

__all__ = ["is_sample_type", "resolve", "show", "split_metadata"]

Arguments = dict[Any, Any]  # by type variable


def is_sample_type(cls: object) -> bool:
    """Return whether a class is packable: a dataclass with the calls of `Packable`."""
    return (
        isinstance(cls, type)
        and hasattr(cls, "from_bytes")
        and hasattr(cls, "packed")
        and dataclasses.is_dataclass(cls)
    )


def resolve(cls: type) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the annotation and the metadata of each field of a dataclass, in order."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in own_annotations(base).items():
            found[name] = base, annotation
    fields = {}
    arguments: dict[type, Arguments] = {}
    bind_parameters(cls, {}, arguments)
    scopes: dict[type, dict[str, Any]] = {}  # made once for each base
    for field in dataclasses.fields(cls):
        base, annotation = found.get(field.name, (cls, field.type))
        scope = scopes[base] = scopes.get(base) or names_of(base)
        hint = evaluate(annotation, base, f"{cls.__qualname__}.{field.name}", scope)
        hint = substitute(hint, arguments.get(base, {}))
        fields[field.name] = split_metadata(hint)
    return fields


def bind_parameters(cls: type, bound: Arguments, found: dict[type, Arguments]) -> None:
    """Map the type variables of generic bases to their arguments, by base."""
    for alias in vars(cls).get("__orig_bases__", ()):
        base = typing.get_origin(alias)
        parameters = getattr(base, "__parameters__", ())
        if isinstance(base, type) and base is not Generic and base not in found:
            values = [
                substitute(
                    evaluate(each.__forward_arg__, cls, cls.__qualname__)
                    if isinstance(each, typing.ForwardRef)
                    else each,
                    bound,
                )
                for each in typing.get_args(alias)
            ]
            if len(values) == len(parameters):
                found[base] = dict(zip(parameters, values, strict=True))
                bind_parameters(base, found[base], found)
    for base in cls.__bases__:
        if base not in found:
            found[base] = {}
            bind_parameters(base, {}, found)


def substitute(hint: Any, bound: Arguments) -> Any:
    """Return a hint with its type variables replaced."""
    if isinstance(hint, typing.TypeVar):
        return bound.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not any(each in bound for each in parameters):
        return hint
    return hint[tuple(bound.get(each, each) for each in parameters)]


def own_annotations(base: type) -> dict[str, Any]:
    """Return the annotations of a class itself, unresolved."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(
            base, format=annotationlib.Format.FORWARDREF
        )
    own: dict[str, Any] = base.__dict__.get("__annotations__", {})  # noqa: RUF063
    return own


def names_of(base: type) -> dict[str, Any]:
    """Return the namespace of the annotations of a class."""
    module = sys.modules.get(base.__module__)
    names = {**vars(base), **(vars(module) if module is not None else {})}
    names |= {each.__name__: each for each in getattr(base, "__type_params__", ())}
    names |= vars(base).get("__fastshard_locals__", {})
    return names


def evaluate(
    annotation: Any, base: type, where: str, names: dict[str, Any] | None = None
) -> Any:
    """Return the type of a class's annotation, with its metadata."""
    names = names_of(base) if names is None else names
    holder = type("Holder", (), {"__annotations__": {"field": annotation}})
    try:
        hints = typing.get_type_hints(holder, vars(builtins), names, True)
    except NameError as error:
        raise TypeError(
            f"{where}: the annotation {annotation!r} names {error.name!r}, which is "
            f"not defined in {base.__module__}"
        ) from error
    except Exception as error:  # an annotation can be any expression
        raise TypeError(
            f"{where}: the annotation {annotation!r} is invalid: {error}"
        ) from error
    return hints["field"]


def split_metadata(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a hint without ``Annotated``, ``Final`` and aliases, and its metadata."""
    metadata: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            metadata += hint.__metadata__
            hint = hint.__origin__
        elif origin is Final:
            (hint,) = typing.get_args(hint)
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # of Python 3.12: bare NDArray
            hint = hint.__value__
        elif type(origin).__name__ == "TypeAliasType":  # NDArray[np.uint8]
            hint = origin.__value__[typing.get_args(hint)]
        else:
            return hint, metadata


def show(hint: Any) -> str:
    """Return an annotation as source text."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        is_builtin = hint.__module__ == "builtins"
        return hint.__qualname__ if is_builtin else f"{hint.__module__}.{hint.__name__}"
    return str(hint)
