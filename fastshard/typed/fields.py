"""Fields of sample types: their declarations, and plans to decode them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastshard._core.typed.plan import TypePlan
from fastshard.errors import FormatError, SchemaError
from fastshard.typed.kinds.annotations import is_sample_type, resolve
from fastshard.typed.kinds.base import Kind
from fastshard.typed.kinds.registry import FORMATS, describe

if TYPE_CHECKING:
    import numpy as np

    from fastshard._core.typed.encode import PayloadEncoder
    from fastshard.typed.kinds.values import ArrayFormat

__all__ = [
    "DeclaredField",
    "Field",
    "FieldPlan",
    "column_of",
    "declared_fields",
    "encoder_of",
    "field_plans",
    "is_sample_type",
    "plan_of",
    "unpack",
]

T = TypeVar("T")
RESERVED = ("as_wds", "from_bytes", "from_data", "packed")


class Field:
    """Marker of a field with other names: ``Annotated[str, Field(...)]``.

    Parameters
    ----------
    aliases : tuple of str
        Other names of the field in shards, earlier ones for example. A payload with
        the field's own name is read by that; else the first alias that it has counts.

    Raises
    ------
    TypeError
        `aliases` is one str, or has others than str.

    Examples
    --------
    >>> from typing import Annotated
    >>> from fastshard import typed
    >>> class Old(typed.PackableSample):
    ...     caption: str
    >>> class Item(typed.PackableSample):
    ...     text: Annotated[str, typed.Field(aliases=("caption",))]
    >>> Item.from_bytes(Old(caption="a cat").packed)
    Item(text='a cat')
    """

    __slots__ = ("aliases",)

    def __init__(self, *, aliases: tuple[str, ...] = ()) -> None:
        if isinstance(aliases, str) or not all(isinstance(a, str) for a in aliases):
            raise TypeError(f"aliases must be a tuple of str, got {aliases!r}")
        self.aliases = tuple(aliases)

    def __repr__(self) -> str:
        return f"Field(aliases={self.aliases!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self.aliases == other.aliases

    def __hash__(self) -> int:
        return hash(self.aliases)


class FieldPlan(NamedTuple):
    """Rule by which a `TypePlan` decodes a field.

    Attributes
    ----------
    name : str
    aliases : tuple of str
    kind : str
        int, float, bool, str, bytes, none, array, or object.
    dtype : numpy.dtype or type or None
        Of arrays: the dtype in any byte order, the scalar type that theirs is a
        subclass of, or None for any.
    optional : bool
        Whether None is a value.
    has_default : bool
    default : object
    factory : callable or None
        Makes defaults.
    decode : callable or None
        Of objects: returns the value of a view of its encoded msgpack value.
    column : callable or None
        Of objects: returns a list or an array for the values of a batch.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    dtype: np.dtype[Any] | type | None
    optional: bool
    has_default: bool
    default: Any
    factory: Callable[[], Any] | None
    decode: Callable[[memoryview], Any] | None
    column: Callable[[list[Any]], Any] | None = None


class DeclaredField(NamedTuple):
    """A field as its class declares it.

    Attributes
    ----------
    name : str
    kind : Kind
    metadata : tuple
        Of ``Annotated``.
    plan : FieldPlan
    """

    name: str
    kind: Kind
    metadata: tuple[Any, ...]
    plan: FieldPlan


class ClassPlans:
    """Fields, plans and encoders of a class, cached on the class itself."""

    __slots__ = ("declared", "encoders", "lenient", "strict")

    def __init__(self) -> None:
        self.declared: tuple[DeclaredField, ...] | None = None
        self.lenient: TypePlan[Any] | None = None
        self.strict: TypePlan[Any] | None = None
        self.encoders: dict[str, PayloadEncoder] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassPlans, ()  # made again if the class itself is unpickled


def plans_of(cls: type) -> ClassPlans:
    """Return the cache of a class, not that of a base."""
    plans = cls.__dict__.get("__fastshard_plans__")
    if not isinstance(plans, ClassPlans):
        if not dataclasses.is_dataclass(cls):
            raise TypeError(
                f"{cls.__qualname__} is not a dataclass: decorate it with "
                "fastshard.typed.packable, or derive it from PackableSample"
            )
        plans = ClassPlans()
        type.__setattr__(cls, "__fastshard_plans__", plans)
    return plans


def plan_of(cls: type[T], strict: bool = False) -> TypePlan[T]:
    """Return the plan that decodes payloads to objects of a class."""
    plans = plans_of(cls)
    plan = plans.strict if strict else plans.lenient
    if plan is None:
        plan = TypePlan(cls, field_plans(cls), has_post_init(cls), strict, plan_of)
        if strict:
            plans.strict = plan
        else:
            plans.lenient = plan
    return plan


def unpack(plan: TypePlan[T], payload: Any, copy: bool, aligned: bool) -> T:
    """Return the object of a payload; the errors are those of `from_bytes`."""
    try:
        return plan.from_buffer(payload, copy, aligned)
    except FormatError as error:
        if type(error) is FormatError and error.member is None:
            # Of the payload as a whole: also a TypeError, as for a missing field.
            raise SchemaError(error.reason, "", error.offset) from None
        raise


def has_post_init(cls: type) -> bool:
    """Return whether objects need `__post_init__`, other than the base's."""
    method = getattr(cls, "__post_init__", None)
    return method is not None and not getattr(method, "__fastshard_base__", False)


def declared_fields(cls: type) -> tuple[DeclaredField, ...]:
    """Return the fields that a class declares, in order."""
    plans = plans_of(cls)
    if plans.declared is None:
        plans.declared = declare(cls)
    return plans.declared


def declare(cls: type) -> tuple[DeclaredField, ...]:
    refuse_init_vars(cls)
    formats: dict[str, str] = getattr(cls, "__field_formats__", {})
    by_name = {field.name: field for field in dataclasses.fields(cls)}
    found = []
    for name, (hint, metadata) in resolve(cls).items():
        where = f"{cls.__qualname__}.{name}"
        if name in RESERVED:
            raise TypeError(f"{where}: samples have a method of this name")
        try:
            kind = describe_field(hint, formats.get(name))
            plan = plan_field(by_name[name], kind, metadata)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from error
        found.append(DeclaredField(name, kind, metadata, plan))
    refuse_unknown_formats(cls, formats, by_name)
    refuse_equal_names(cls, found)
    return tuple(found)


def describe_field(hint: Any, format_name: str | None) -> Kind:
    """Return the kind of a field, by its format if given."""
    if format_name is None:
        return describe(hint)
    if format_name not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        raise TypeError(f"unknown format {format_name!r}; there are {known}")
    try:
        kind = describe(hint)
    except TypeError:  # the annotation is for readers: the format gives the kind
        kind = describe(Any)
    return FORMATS[format_name].of_format(kind)


def refuse_init_vars(cls: type) -> None:
    fields: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, field in fields.items():
        kind = field.type
        is_init_var = isinstance(kind, dataclasses.InitVar) or (
            isinstance(kind, str) and "InitVar" in kind
        )
        if is_init_var or kind is dataclasses.InitVar:
            raise TypeError(
                f"{cls.__qualname__}.{name}: an InitVar is not stored, so that it "
                "cannot be a field of a sample"
            )


def refuse_unknown_formats(
    cls: type, formats: dict[str, str], by_name: dict[str, Any]
) -> None:
    for name in formats:
        if name not in by_name:
            raise TypeError(
                f"{cls.__qualname__}.__field_formats__ names {name!r}, which is not a "
                "field"
            )


def refuse_equal_names(cls: type, found: list[DeclaredField]) -> None:
    owners = {each.name: each.name for each in found}
    for each in found:
        for alias in each.plan.aliases:
            other = owners.setdefault(alias, each.name)
            if other != each.name:
                raise TypeError(
                    f"{cls.__qualname__}.{each.name}: the alias {alias!r} is a name of "
                    f"the field {other!r}, too"
                )


def field_plans(cls: type) -> tuple[FieldPlan, ...]:
    """Return the rules to decode the fields of a class."""
    return tuple(each.plan for each in declared_fields(cls))


def column_of(cls: Any, name: str, values: list[Any]) -> Any:
    """Return the values of a field in a batch: a list, or an array of its kind."""
    if not is_sample_type(cls):
        return values
    columns = {each.name: each.column for each in field_plans(cls)}
    column = columns.get(name)
    return values if column is None else column(values)


def plan_field(
    field: dataclasses.Field[Any], kind: Kind, metadata: tuple[Any, ...]
) -> FieldPlan:
    factory = field.default_factory
    has_default = field.default is not dataclasses.MISSING
    return FieldPlan(
        name=field.name,
        aliases=tuple(
            alias
            for each in metadata
            if isinstance(each, Field)
            for alias in each.aliases
        ),
        kind=kind.opcode,
        dtype=kind.dtype,
        optional=kind.optional,
        has_default=has_default or factory is not dataclasses.MISSING,
        default=field.default if has_default else None,
        factory=None if factory is dataclasses.MISSING else factory,
        decode=kind.decoder(plan_of),
        column=None if type(kind).column is Kind.column else kind.column,
    )


def encoder_of(cls: type, array_format: ArrayFormat = "npy") -> PayloadEncoder:
    """Return the encoder of a class's samples."""
    encoders = plans_of(cls).encoders
    encoder = encoders.get(array_format)
    if encoder is None:
        from fastshard.typed.kinds.values import make_encoder

        declared = declared_fields(cls)
        encoder = encoders[array_format] = make_encoder(
            [each.name for each in declared],
            array_format=array_format,
            dtypes={
                each.name: each.kind.dtype for each in declared if each.kind.scalars
            },
            encoders={
                each.name: encode
                for each in declared
                if (encode := each.kind.encoder()) is not None
            },
            kinds={
                each.name: each.kind.opcode + "?" * each.kind.optional
                for each in declared
                if each.kind.opcode != "object"
            },
        )
    return encoder
