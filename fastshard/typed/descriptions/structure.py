"""Structures of sample types: names and kinds of fields, without a class."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastshard._util import texts
from fastshard.errors import DescriptionError
from fastshard.typed.fields import declared_fields
from fastshard.typed.kinds.annotations import FORMATS, Kind

__all__ = [
    "Structure",
    "StructureField",
    "ValueType",
    "canonical_dtype",
    "describe",
    "list_of",
    "map_of",
    "resolve_dtype",
    "text_of",
]

PRIMITIVES = ("str", "int", "float", "bool", "bytes")
MAX_DEPTH = 32  # of lists in lists
MAX_FIELDS = 4096
MAX_NAME = 200  # characters of a type's name, and of a field's
MAX_DTYPE = 64  # characters
MAX_SHOWN = 60  # characters of a value in an error
DTYPE = re.compile(r"[<>=|]?[A-Za-z]\w*(\[\w+\])?", re.ASCII)
# Fields of these names would be in the way of the type's own methods.
TAKEN = frozenset({"as_wds", "from_bytes", "from_data", "packed"})


class ValueType(NamedTuple):
    """Type of the values of a field.

    Attributes
    ----------
    kind : str
        str, int, float, bool, bytes; ndarray; array, a list; object, a dict;
        arrow_tensor, dataframe, safetensors, sparse, structured.
    dtype : str or None
        Of ndarrays, None for any; of structured ones the text of theirs.
    shape : tuple of int or None, or None
        Of ndarrays; a dimension of any size is None. An annotation: not checked.
    dimension_names : tuple of str or None
    items : ValueType or None
        Of lists; None for items of any type.
    is_exact : bool
        False for an ndarray whose dtype is only claimed: atdata writes float32 for
        arrays of any dtype.
    """

    kind: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    dimension_names: tuple[str, ...] | None = None
    items: ValueType | None = None
    is_exact: bool = True

    def is_like(self, other: ValueType) -> bool:
        """Return whether values of both types are the same.

        A dtype that is only claimed is like itself, and like none.
        """
        if self.kind != other.kind:
            return False
        if self.items is not None and other.items is not None:
            return self.items.is_like(other.items)
        if (self.items is None) != (other.items is None):
            return False
        if self[2:4] != other[2:4]:
            return False
        return (
            self.dtype == other.dtype
            or (not self.is_exact and other.dtype is None)
            or (not other.is_exact and self.dtype is None)
        )

    def reads(self, other: ValueType) -> bool:
        """Return whether all values of another type are values of this one."""
        if self.kind == "array" and other.kind == "array":
            return self.items is None or (
                other.items is not None and self.items.reads(other.items)
            )
        if self.kind == "ndarray" and other.kind == "ndarray":
            return self.dtype in (None, other.dtype) or not self.is_exact
        return self.kind == other.kind or (self.kind, other.kind) == ("float", "int")

    def __str__(self) -> str:
        if self.kind == "array":
            return "list" if self.items is None else f"list[{self.items}]"
        if self.kind == "object":
            return "dict"
        if self.kind != "ndarray":
            return self.kind
        parts = [self.dtype or "any"] if self.is_exact else ["any"]
        if self.shape is not None:
            sizes = ", ".join("?" if n is None else str(n) for n in self.shape)
            parts.append(f"({sizes})")
        if self.dimension_names is not None:
            parts.append(", ".join(self.dimension_names))
        return f"ndarray[{'; '.join(parts)}]"


class StructureField(NamedTuple):
    """A field of a `Structure`.

    Attributes
    ----------
    name : str
    type : ValueType
    optional : bool
        Whether None is a value, and the default.
    """

    name: str
    type: ValueType
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.type} | None" if self.optional else str(self.type)


class Structure(NamedTuple):
    """A sample type without its class.

    Attributes
    ----------
    name : str
    fields : tuple of StructureField
    version : str or None
    description : str or None
    """

    name: str
    fields: tuple[StructureField, ...]
    version: str | None = None
    description: str | None = None

    def equals(self, other: Structure) -> bool:
        """Return whether two structures have the same name and the same fields.

        The order of the fields has no meaning: records do not keep it. Versions and
        descriptions are not compared.

        Examples
        --------
        >>> from fastshard import typed
        >>> from fastshard.typed.descriptions.structure import describe
        >>> class Caption(typed.PackableSample):
        ...     text: str
        >>> first = describe(Caption)
        >>> class Caption(typed.PackableSample):
        ...     text: str | None
        >>> first.equals(describe(Caption)), first.equals(first)
        (False, True)
        """
        if self.name != other.name or len(self.fields) != len(other.fields):
            return False
        others = {each.name: each for each in other.fields}
        return all(
            each.name in others
            and each.optional == others[each.name].optional
            and each.type.is_like(others[each.name].type)
            for each in self.fields
        )

    def check(self, where: str | None = None) -> None:
        """Refuse names that a class and its fields cannot have.

        Parameters
        ----------
        where : str, optional
            The place, for errors.

        Raises
        ------
        DescriptionError
            The structure has no field or too many, a name is none of Python's, is too
            long, occurs twice, or is that of a method.
        """
        where = where or f"schema {shorten(self.name)}"
        check_name(self.name, "class", where)
        if not self.fields:
            raise DescriptionError("must have at least one field", where)
        if len(self.fields) > MAX_FIELDS:
            raise DescriptionError(
                f"has {len(self.fields):,} fields, more than {MAX_FIELDS:,}", where
            )
        seen: set[str] = set()
        for each in self.fields:
            check_name(each.name, "field", where)
            if each.name in TAKEN or each.name.startswith("__"):
                raise DescriptionError(
                    f"Invalid field name {each.name!r}: samples have a method or an "
                    "attribute of this name",
                    where,
                )
            if each.name in seen:
                raise DescriptionError(f"has the field {each.name!r} twice", where)
            seen.add(each.name)


def check_name(name: str, what: str, where: str) -> None:
    is_name = len(name) <= MAX_NAME and name.isidentifier()
    if (
        not is_name
        or keyword.iskeyword(name)
        or unicodedata.normalize("NFKC", name) != name  # as Python reads source
    ):
        raise DescriptionError(
            f"Invalid {what} name {shorten(name)}: must be a valid Python identifier "
            f"of at most {MAX_NAME} characters",
            where,
        )


def shorten(value: object) -> str:
    """Return a value of a description as an error shows it."""
    if not isinstance(value, str):
        return type(value).__name__
    return repr(texts.shorten(value, MAX_SHOWN))


def text_of(data: Mapping[str, Any], key: str, where: str) -> str:
    """Return a str of a description.

    Raises
    ------
    DescriptionError
        It is missing, or is none.
    """
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise DescriptionError(f"must have a {key!r} field, a str", where)
    return value


def map_of(data: object, what: str, where: str) -> Mapping[str, Any]:
    """Return a value of a description that must be an object of JSON."""
    if not isinstance(data, Mapping):
        raise DescriptionError(f"{what} must be an object, is {shorten(data)}", where)
    return data


def list_of(data: object, what: str, where: str) -> list[Any]:
    """Return a value of a description that must be a list of bounded length."""
    if not isinstance(data, list):
        raise DescriptionError(f"{what} must be a list, is {shorten(data)}", where)
    if len(data) > MAX_FIELDS:
        raise DescriptionError(
            f"{what} has {len(data):,} items, more than {MAX_FIELDS:,}", where
        )
    return data


def describe(cls: type) -> Structure:
    """Return the structure of a packable class.

    Lists whose items are of several types or may be None are described as lists of
    anything, tuples as lists, dicts without the types of their values; literals and
    enumerations are described by the type of their values.

    Parameters
    ----------
    cls : type
        A packable class.

    Returns
    -------
    Structure
        Without a version; its description is the class's docstring.

    Raises
    ------
    TypeError
        The class is not packable, or a field cannot be described; names both.

    Examples
    --------
    >>> import numpy as np
    >>> from numpy.typing import NDArray
    >>> from fastshard import typed
    >>> from fastshard.typed.descriptions.structure import describe
    >>> class Item(typed.PackableSample):
    ...     x: NDArray[np.float32]
    ...     words: list[str] | None = None
    >>> [f"{each.name}: {each}" for each in describe(Item).fields]
    ['x: ndarray[float32]', 'words: list[str] | None']
    """
    known = cls.__dict__.get("__schema_structure__")
    if isinstance(known, Structure):
        return known._replace(version=None)
    formats = getattr(cls, "__field_formats__", {})
    fields = []
    for each in declared_fields(cls):
        try:
            found = describe_kind(each.kind, formats.get(each.name))
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.{each.name}: {error}") from None
        fields.append(StructureField(each.name, found, each.kind.optional))
    return Structure(cls.__name__, tuple(fields), description=docstring_of(cls))


def docstring_of(cls: type) -> str | None:
    """Return a class's own docstring, but not that which `dataclass` makes."""
    text = cls.__doc__
    if not text or text.startswith(f"{cls.__name__}("):
        return None
    return text


def describe_kind(kind: Kind, format_name: str | None = None) -> ValueType:
    """Return the type of the values of a kind.

    Raises
    ------
    TypeError
        It has no description.
    """
    if kind.name == "array" and format_name == "structured":
        return ValueType("structured")
    if kind.name == "array":
        return ValueType("ndarray", name_dtype(kind))
    if kind.name in PRIMITIVES or kind.name in FORMATS:
        return ValueType(kind.name)
    if kind.name == "dict":
        return ValueType("object")
    if kind.name in ("list", "tuple"):
        return ValueType("array", items=describe_items(kind.items))
    if kind.name in ("literal", "enum"):
        return describe_values(kind)
    if kind.name == "sample":
        assert kind.cls is not None
        raise TypeError(
            "Nested dataclass types not yet supported: a schema has no samples within "
            f"samples, as {kind.cls.__qualname__} is"
        )
    raise TypeError(f"a field of the kind {kind.name} cannot be described by a schema")


def describe_items(kinds: tuple[Kind, ...]) -> ValueType | None:
    """Return the type that all items of a list have, None if they have no one."""
    if not kinds or any(kind.optional for kind in kinds):
        return None
    try:
        first, *others = map(describe_kind, kinds)
    except TypeError:
        return None
    return first if all(other == first for other in others) else None


def describe_values(kind: Kind) -> ValueType:
    members: Any = kind.cls
    values = kind.values if members is None else [each.value for each in members]
    types = {type(value).__name__ for value in values}
    if len(types) == 1 and types <= {*PRIMITIVES}:
        return ValueType(types.pop())
    raise TypeError(f"the values of this {kind.name} are not of one type")


def name_dtype(kind: Kind) -> str | None:
    """Return the name of the dtype of arrays, None if it is not one alone."""
    import numpy as np

    if len(kind.scalars) != 1:
        return None
    scalar = kind.scalars[0]
    try:
        dtype = np.dtype(scalar)
    except TypeError:
        return None
    is_abstract = isinstance(scalar, type) and dtype.type is not scalar
    return None if is_abstract else bare_name(dtype)


def bare_name(dtype: Any) -> str:
    """Return a dtype's name without byte order and without the length of its items."""
    return str(dtype.type.__name__.rstrip("_") if dtype.kind in "SUVmM" else dtype.name)


def canonical_dtype(text: str) -> str:
    """Return NumPy's name of a dtype, ``float32`` of ``<f4``; else the text itself."""
    try:
        return bare_name(parse_dtype(text))
    except TypeError:
        return text


def resolve_dtype(text: str, where: str) -> Any:
    """Return the scalar type of a dtype's name.

    Raises
    ------
    DescriptionError
        Neither NumPy nor ``ml_dtypes``, if it is installed, has one; arrays of objects
        and structured ones are refused.
    """
    try:
        dtype = parse_dtype(text)
    except TypeError:
        raise DescriptionError(f"unknown dtype {shorten(text)}", where) from None
    if dtype.hasobject or dtype.fields is not None:
        raise DescriptionError(f"arrays of the dtype {text!r} cannot be read", where)
    return dtype.type


def parse_dtype(text: str) -> Any:
    import numpy as np

    if len(text) > MAX_DTYPE or DTYPE.fullmatch(text) is None:
        raise TypeError(text)
    try:
        return np.dtype(text)
    except Exception as error:  # of NumPy: TypeError, ValueError, SyntaxError
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(text) from error
        try:
            return np.dtype(getattr(ml_dtypes, text))
        except (AttributeError, TypeError):
            raise TypeError(text) from error
