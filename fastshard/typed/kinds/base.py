"""Kinds of fields: interface for annotations, encoding, schemas and tests.

A new kind is a subclass of `Kind` or `EncodedKind` in a file of its own, and a line in
the table of `fastshard/typed/kinds/registry.py`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError, MissingLibraryError, SchemaError
from fastshard.typed.kinds.annotations import show
from fastshard.typed.kinds.decoders import Decode, decoder_for, is_nil
from fastshard.typed.kinds.value_type import ValueType

__all__ = ["AggregateKind", "EncodedKind", "Kind", "SampleMaker"]

AggregateKind = Literal["categorical", "numeric", "set"]
SCHEMAS = "https://alt.science/schemas/"  # of references
SHAPE = (4, 4)  # of test values
Describe = Callable[[Any], "Kind"]
PlanOf = Callable[[type], Any]
Inner = Callable[..., Any]  # the same method, for a part of a value
JSON = Mapping[str, Any]


class SampleMaker:
    """Test sample under construction; `make_sample` makes nested ones."""

    def __init__(self, i: int, rng: Any, make_sample: Callable[[type], Any]) -> None:
        self.i = i
        self.rng = rng
        self.make_sample = make_sample

    def floats(self) -> Any:
        """Return a random array of float32."""
        import numpy as np

        return self.rng.standard_normal(SHAPE).astype(np.float32)


class Kind:  # no dataclass, which takes longer to import
    """Kind of the values of a field, or of the items of a container."""

    name: ClassVar[str]  # as `schema_of` has it
    schema_name: ClassVar[str | None] = None  # of its `ValueType`, or None
    opcode: ClassVar[str] = "object"  # in compiled plans; objects have a decoder
    python: ClassVar[Any] = None  # type for msgspec, and of types made of schemas
    is_item: ClassVar[bool] = True  # whether containers may have it
    is_alternative: ClassVar[bool] = True  # whether unions with others than None may
    is_format: ClassVar[bool] = False  # whether `__field_formats__` may name it
    json_schema: ClassVar[JSON | None] = None  # None: by reference
    reference: ClassVar[str] = ""  # URL of its definition, for JSON Schema
    words: ClassVar[tuple[str, ...]] = ()  # its references have one of them
    lexicon: ClassVar[str | None] = None  # its name in the lexicon of schemas
    stub_import: ClassVar[str] = ""  # import line of its annotations in stubs
    aggregate: ClassVar[AggregateKind | None] = None  # None: not in manifests

    def __init__(
        self,
        optional: bool = False,  # whether None is also a value
        *,
        scalars: tuple[Any, ...] = (),  # of arrays: dtypes, or abstract types; or any
        items: tuple[Kind, ...] = (),  # of containers, empty where they are bare
        cls: type | None = None,  # of enums, samples and encoded values
        values: tuple[Any, ...] = (),  # of literals
        is_variadic: bool = False,  # of tuples: any number of items of one kind
    ) -> None:
        self.optional = optional
        self.scalars = scalars
        self.items = items
        self.cls = cls
        self.values = values
        self.is_variadic = is_variadic

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    # From an annotation to a kind

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        """Return the kind of an annotation, or None."""
        return cls() if hint is cls.python and hint is not None else None

    @classmethod
    def of_format(cls, declared: Kind) -> Kind:
        """Return the kind of a field with this format."""
        optional = declared.optional or declared.name == "any"
        return cls(optional, cls=declared.cls)

    def replaced(self, *, optional: bool) -> Self:
        """Return the kind with or without None."""
        return type(self)(**{**vars(self), "optional": optional})

    # Encoding and decoding

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        """Return the decoder of a field; None if its opcode decodes it."""
        return None

    def encoder(self) -> Callable[[Any], object] | None:
        """Return the function that makes values storable, except None and bytes."""
        return None

    @property
    def dtype(self) -> Any:
        """The dtype or the scalar type of a field's arrays; None for any."""
        return None

    def from_stored(self, data: bytes) -> Any:
        """Return the constructor's value for stored bytes."""
        return data

    def item_type(self, stand_in: Inner) -> Any:
        """Return the type by which msgspec decodes; `stand_in` gives a sample's."""
        if not self.is_item:
            raise TypeError(
                f"{self.name}s inside containers cannot be fields of a sample"
            )
        hint = self.inner_type(stand_in)
        return hint | None if self.optional and hint is not None else hint

    def inner_type(self, stand_in: Inner) -> Any:
        """Return the type by which msgspec decodes values that are not None."""
        return self.python

    # Batches

    def column(self, values: list[Any]) -> Any:
        """Return the values of a batch: a list, or an array with them along axis 0.

        Arrays in a list are stacked, and padded where the caller wants that.
        """
        return values

    # Schemas

    def to_schema(self, describe_class: Inner) -> dict[str, Any]:
        """Return the kind's part of `schema_of`."""
        found: dict[str, Any] = {"kind": self.name, "optional": self.optional}
        if self.items:
            found["items"] = [item.to_schema(describe_class) for item in self.items]
        if self.is_variadic:
            found["variadic"] = True
        return found

    def value_type(self) -> ValueType:
        """Return the values' type in a schema; raise TypeError without one."""
        if self.schema_name is None:
            raise TypeError(
                f"a field of the kind {self.name} cannot be described by a schema"
            )
        return ValueType(self.schema_name)

    @classmethod
    def to_property(cls, value: ValueType, inner: Inner) -> dict[str, Any]:
        """Return the JSON Schema of a type; `inner` is that of its items."""
        if cls.json_schema is not None:
            return dict(cls.json_schema)
        found: dict[str, Any] = {"$ref": cls.reference}
        if value.dtype is not None and value.is_exact:
            found["dtype"] = value.dtype
        return found | dimensions_json(value)

    @classmethod
    def from_property(cls, found: JSON, inner: Inner) -> ValueType | None:
        """Return the type of a property of JSON Schema, or None."""
        own = cls.json_schema
        if own is None or any(found.get(key) != own[key] for key in own):
            return None
        return ValueType(cls.schema_name or cls.name)

    @classmethod
    def from_reference(cls, found: JSON, where: str) -> ValueType:
        """Return the type of a property that refers to this kind."""
        return ValueType(cls.schema_name or cls.name)

    @classmethod
    def from_local(cls, found: JSON, where: str, inner: Inner) -> ValueType:
        """Return the type in an index's JSON; `inner` is that of its items."""
        return cls.from_reference(found, where)

    @classmethod
    def annotation(cls, value: ValueType, where: str, inner: Inner) -> Any:
        """Return the annotation of a type's values; `inner` is that of its items."""
        return cls.python

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        """Return the annotation as source of a stub; `prefix` goes to builtins."""
        return f"{prefix}{cls.python.__name__}"

    # Values for tests

    def make(self, name: str, maker: SampleMaker) -> Any:
        """Return a value of the field `name` for a test sample."""
        return f"{name}_{maker.i}"


def dimensions_json(value: ValueType) -> dict[str, Any]:
    """Return the dimensions of an array's annotation as JSON."""
    found: dict[str, Any] = {}
    if value.shape is not None:
        found["shape"] = list(value.shape)
    if value.dimension_names is not None:
        found["dimensionNames"] = list(value.dimension_names)
    return found


class EncodedKind(Kind):
    """Kind of values without a msgpack type: stored as bytes or a plain value.

    Its `schema_name`, and the word of its references, are its name if need be. `python`
    is the type of the encoded values.
    """

    libraries: ClassVar[tuple[str, ...]] = ()  # modules that `encode`, `decode` import
    classes: ClassVar[tuple[str, ...]] = ()  # of values: "package.Class", not imported
    python = bytes
    stub_hint: ClassVar[str] = "Any"  # a type checker may not know the class
    is_item = False
    is_alternative = False
    is_format = True

    def __init_subclass__(cls) -> None:
        cls.schema_name = cls.schema_name or cls.name
        cls.words = cls.words or (cls.name,)

    @staticmethod
    def encode(value: Any) -> object:
        """Return the encoded value; raise TypeError for one of another type."""
        raise NotImplementedError

    @staticmethod
    def decode(data: Any) -> Any:
        """Return the value of an encoded one; the errors are those of its library."""
        raise NotImplementedError

    @staticmethod
    def equals(left: Any, right: Any) -> bool:
        """Return whether two values of one class are equal."""
        return bool(left == right)

    @staticmethod
    def plain(value: Any) -> Any:
        """Return a value for manifests and conditions."""
        return value

    @classmethod
    def holds(cls, module: str, name: str) -> bool:
        """Return whether values of a class are of this kind."""
        return f"{module.partition('.')[0]}.{name}" in cls.classes

    @classmethod
    def of(cls, hint: Any, describe: Describe) -> Kind | None:
        origin = typing.get_origin(hint) or hint
        if isinstance(origin, type) and cls.holds(origin.__module__, origin.__name__):
            return cls(cls=origin)
        return None

    @classmethod
    def load(cls) -> None:
        """Import the libraries; raise MissingLibraryError if one is not installed."""
        names = [each.partition(".")[0] for each in cls.libraries]
        need = f"fields of the format {cls.schema_name!r} need {' and '.join(names)}"
        for library in cls.libraries:
            import_library(library, need, " ".join(names))

    @classmethod
    def to_stored(cls, value: Any) -> object:
        """Return the encoded value, with the kind's libraries imported."""
        cls.load()
        return cls.encode(value)

    def encoder(self) -> Callable[[Any], object] | None:
        return self.to_stored

    def from_stored(self, data: Any) -> Any:
        self.load()
        return self.decode(data)

    def decoder(self, plan_of: PlanOf) -> Decode | None:
        return functools.partial(decode_field, self)

    @classmethod
    def stub(cls, value: ValueType, where: str, prefix: str, inner: Inner) -> str:
        return cls.stub_hint


def decode_field(kind: EncodedKind, view: memoryview) -> Any:
    """Decode a field of an encoded kind."""
    if kind.optional and is_nil(view):
        return None
    data = decoder_for(kind.python)(view)
    try:
        value = kind.from_stored(data)
    except (FormatError, MissingLibraryError):
        raise
    except Exception as error:  # raised by libraries for broken bytes
        raise FormatError(f"no {kind.schema_name}: {error}", "", 0) from error
    if kind.cls is not None and not isinstance(value, kind.cls):
        raise SchemaError(f"expected {show(kind.cls)}, got {show(type(value))}", "", 0)
    return value
