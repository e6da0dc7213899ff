"""Annotations of fields: resolved when first needed, then described by kinds."""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import enum
import sys
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FORMATS",
    "Kind",
    "describe",
    "is_sample_type",
    "library_format",
    "resolve",
]

FORMATS = ("arrow_tensor", "dataframe", "safetensors", "sparse", "structured")
SCALARS = {int: "int", float: "float", bool: "bool", str: "str", bytes: "bytes"}
Arguments = dict[Any, Any]  # by type variable
LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
# Types of other libraries by the package and the name, so that none is imported.
LIBRARY_FORMATS = {
    ("pandas", "DataFrame"): "dataframe",
    ("pyarrow", "Tensor"): "arrow_tensor",
}


class Kind(NamedTuple):
    """Kind of the values of a field, or of the items of a container.

    Attributes
    ----------
    name : str
        int, float, bool, str, bytes, none, any, array, list, tuple, dict, union,
        literal, enum, sample, or one of `FORMATS`.
    optional : bool
        Whether None is a value, too.
    scalars : tuple of type or numpy.dtype
        Of arrays: their dtypes, ``np.float32`` or an abstract ``np.floating``; empty
        if any will do.
    items : tuple of Kind
        Of lists and variadic tuples one, of dicts of the key and of the value, of
        tuples and unions each; empty where the annotation is bare.
    cls : type or None
        Of enums, samples and the types of libraries.
    values : tuple
        Of literals.
    is_variadic : bool
        Of tuples: any number of items of one kind.
    """

    name: str
    optional: bool = False
    scalars: tuple[Any, ...] = ()
    items: tuple[Kind, ...] = ()
    cls: type | None = None
    values: tuple[Any, ...] = ()
    is_variadic: bool = False


def is_sample_type(cls: object) -> bool:
    """Return whether a class is packable: a dataclass with the calls of `Packable`."""
    return (
        isinstance(cls, type)
        and hasattr(cls, "from_bytes")
        and hasattr(cls, "packed")
        and dataclasses.is_dataclass(cls)
    )


def resolve(cls: type) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the annotation and the metadata of each field of a dataclass, in order.

    Raises
    ------
    TypeError
        An annotation cannot be resolved; names the class and the field.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in own_annotations(base).items():
            found[name] = base, annotation
    fields = {}
    arguments: dict[type, Arguments] = {}
    bind_parameters(cls, {}, arguments)
    scopes: dict[type, dict[str, Any]] = {}  # of many fields, a base's is made once
    for field in dataclasses.fields(cls):
        base, annotation = found.get(field.name, (cls, field.type))
        scope = scopes[base] = scopes.get(base) or names_of(base)
        hint = evaluate(annotation, base, f"{cls.__qualname__}.{field.name}", scope)
        hint = substitute(hint, arguments.get(base, {}))
        fields[field.name] = split_metadata(hint)
    return fields


def bind_parameters(cls: type, bound: Arguments, found: dict[type, Arguments]) -> None:
    """Collect what the type variables of generic bases stand for, by base."""
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
    """Return what the names in annotations of a class stand for."""
    module = sys.modules.get(base.__module__)
    names = {**vars(base), **(vars(module) if module is not None else {})}
    names |= {each.__name__: each for each in getattr(base, "__type_params__", ())}
    names |= vars(base).get("__fastshard_locals__", {})
    return names


def evaluate(
    annotation: Any, base: type, where: str, names: dict[str, Any] | None = None
) -> Any:
    """Return the type that an annotation of a class means, with its metadata."""
    names = names_of(base) if names is None else names
    holder = type("Holder", (), {"__annotations__": {"field": annotation}})
    try:
        hints = typing.get_type_hints(holder, vars(builtins), names, True)
    except NameError as error:
        raise TypeError(
            f"{where}: the annotation {annotation!r} names {error.name!r}, which is "
            f"not defined in {base.__module__}"
        ) from error
    except Exception as error:  # an annotation is any expression
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


def describe(hint: Any) -> Kind:
    """Return the kind of the values of an annotation.

    Raises
    ------
    TypeError
        Such values cannot be fields.
    """
    hint, _ = split_metadata(hint)
    if hint is None or hint is type(None):
        return Kind("none", optional=True)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return Kind("any")
    if hint in SCALARS:
        return Kind(SCALARS[hint])
    origin = typing.get_origin(hint) or hint
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return describe_union(args)
    if origin is typing.Literal:
        values = tuple(value for value in args if value is not None)
        return Kind("literal", optional=None in args, values=values)
    if origin in LISTS:
        return Kind("list", items=describe_items(args))
    if origin in MAPS:
        return Kind("dict", items=describe_items(args))
    if origin is tuple:
        return describe_tuple(hint, args)
    kind = describe_class(origin, args) if isinstance(origin, type) else None
    if kind is not None:
        return kind
    raise TypeError(f"{show(hint)} cannot be a field of a sample")


def describe_union(args: tuple[Any, ...]) -> Kind:
    kinds: list[Kind] = []
    for each in map(describe, args):
        kinds += each.items if each.name == "union" else [each]
        if each.name == "union" and each.optional:
            kinds.append(Kind("none", optional=True))
    optional = any(kind.optional for kind in kinds)
    others = [kind._replace(optional=False) for kind in kinds if kind.name != "none"]
    others = list(dict.fromkeys(others))
    if len(others) == 1:
        return others[0]._replace(optional=optional)
    for kind in others:
        if kind.name in ("array", "sample", *FORMATS):
            raise TypeError(
                f"a union of {kind.name}s and other types than None cannot be a field"
            )
    return Kind("union", optional=optional, items=tuple(others))


def describe_items(args: tuple[Any, ...]) -> tuple[Kind, ...]:
    """Return the kinds of the items of a container."""
    kinds = tuple(map(describe, args))
    for kind in kinds:
        if kind.name == "array" or kind.name in FORMATS:
            raise TypeError(
                f"{kind.name}s inside containers cannot be fields of a sample"
            )
    return kinds


def describe_tuple(hint: Any, args: tuple[Any, ...]) -> Kind:
    if hint is tuple or hint is typing.Tuple:  # noqa: UP006
        return Kind("tuple", is_variadic=True)
    if len(args) == 2 and args[1] is ...:
        return Kind("tuple", items=describe_items(args[:1]), is_variadic=True)
    return Kind("tuple", items=describe_items(args))


def library_format(cls: type) -> str | None:
    """Return the format of a class of another library, which is not imported."""
    if cls.__module__.startswith("scipy.sparse"):
        return "sparse"
    return LIBRARY_FORMATS.get((cls.__module__.partition(".")[0], cls.__name__))


def describe_class(cls: type, args: tuple[Any, ...]) -> Kind | None:
    if cls.__module__.partition(".")[0] == "numpy" and cls.__name__ == "ndarray":
        return Kind("array", scalars=scalars_of(args[1]) if len(args) > 1 else ())
    name = library_format(cls)
    if name is not None:
        return Kind(name, cls=cls)
    if issubclass(cls, enum.Enum):
        return Kind("enum", cls=cls)
    if is_sample_type(cls):
        return Kind("sample", cls=cls)
    return None


def scalars_of(dtype: Any) -> tuple[Any, ...]:
    """Return the scalar types of ``np.dtype[...]``, none if it says nothing."""
    (scalar,) = typing.get_args(dtype) or (Any,)
    scalar, _ = split_metadata(scalar)
    if typing.get_origin(scalar) in (typing.Union, types.UnionType):
        each = [scalars_of_type(member) for member in typing.get_args(scalar)]
        return () if () in each else tuple(one for several in each for one in several)
    return scalars_of_type(scalar)


def scalars_of_type(scalar: Any) -> tuple[Any, ...]:
    import numpy as np

    scalar = typing.get_origin(scalar) or scalar  # of np.integer[Any]
    if scalar is Any or isinstance(scalar, typing.TypeVar) or scalar is np.generic:
        return ()
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        if issubclass(scalar, np.object_):
            raise TypeError("arrays of objects cannot be fields of a sample")
        return (scalar,)
    dtype: np.dtype[Any] = np.dtype(scalar)  # of Python's float, for example
    if dtype.hasobject:
        raise TypeError("arrays of objects cannot be fields of a sample")
    return (dtype.type,)


def show(hint: Any) -> str:
    """Return an annotation as source has it."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        is_builtin = hint.__module__ == "builtins"
        return hint.__qualname__ if is_builtin else f"{hint.__module__}.{hint.__name__}"
    return str(hint)
