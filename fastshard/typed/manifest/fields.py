"""Fields of a type in manifests, and the kinds of their aggregates."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Union, get_args, get_origin

from fastshard.typed.kinds.annotations import resolve
from fastshard.typed.kinds.base import AggregateKind
from fastshard.typed.kinds.registry import describe, kind_of_value
from fastshard.where.columns import add_conversion
from fastshard.where.predicate import Fields

__all__ = [
    "AggregateKind",
    "ManifestField",
    "query_fields",
    "resolve_manifest_fields",
]


@dataclasses.dataclass(frozen=True)
class ManifestField:
    """Marker of a field in manifests: ``Annotated[int, ManifestField("categorical")]``.

    Parameters
    ----------
    aggregate : "categorical", "numeric" or "set"
        Summary of the field over a whole shard: the count of each value; the least,
        the largest and the mean; or the union of lists.
    exclude : bool, default False
        Leave the field out.

    Raises
    ------
    ValueError
        `aggregate` is another value.

    Examples
    --------
    >>> from typing import Annotated
    >>> from fastshard import typed
    >>> @typed.packable
    ... class Graded:
    ...     grade: Annotated[int, typed.ManifestField("categorical")]
    ...     note: Annotated[str, typed.ManifestField("categorical", exclude=True)]
    >>> list(typed.query_fields(Graded))
    ['grade']
    """

    aggregate: AggregateKind
    exclude: bool = False

    def __post_init__(self) -> None:
        if self.aggregate not in get_args(AggregateKind):
            raise ValueError(
                "aggregate must be 'categorical', 'numeric' or 'set', "
                f"got {self.aggregate!r}"
            )


def resolve_manifest_fields(sample_type: type) -> dict[str, ManifestField]:
    """Return the fields that manifests of a type have.

    Those that are marked with `ManifestField`; of others str and bool as categorical,
    int and float as numeric, lists as sets.
    """
    if not isinstance(sample_type, type) or not dataclasses.is_dataclass(sample_type):
        raise TypeError(f"expected a packable class, got {sample_type!r}")
    found = {}
    for name, (annotation, metadata) in resolve(sample_type).items():
        marker = find_marker(annotation, metadata)
        if marker is None:
            kind = infer_kind(annotation)
            marker = None if kind is None else ManifestField(kind)
        if marker is not None and not marker.exclude:
            found[name] = marker
    return found


def find_marker(annotation: Any, metadata: tuple[Any, ...]) -> ManifestField | None:
    """Return the marker of a field, also one inside ``X | None``."""
    inner = (getattr(part, "__metadata__", ()) for part in members(annotation))
    for item in (*metadata, *chain.from_iterable(inner)):
        if isinstance(item, ManifestField):
            return item
    return None


def infer_kind(annotation: Any) -> AggregateKind | None:
    """Return the kind of aggregate of a field without a marker, or None."""
    try:
        return describe(annotation).aggregate
    except TypeError:  # not a field of a sample, or one by its format only
        return None


def members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, or the one type."""
    annotation = strip(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        yield from get_args(annotation)
    else:
        yield annotation


def strip(annotation: Any) -> Any:
    """Return an annotation without ``Annotated``."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def query_fields(sample_type: type) -> Fields:
    """Return the fields of a type that queries can use.

    Parameters
    ----------
    sample_type : type
        A packable class.

    Returns
    -------
    Fields
        Its attributes are `FieldProxy`.

    Raises
    ------
    TypeError
        The type is not a packable class.

    Examples
    --------
    >>> from fastshard.typed import query_fields
    >>> F = query_fields(ImageSample)
    >>> F
    ImageSampleFields(label)
    >>> F.label != "cat"
    Predicate('label' ne 'cat')
    """
    names = resolve_manifest_fields(sample_type)
    return Fields(names, f"{sample_type.__name__}Fields")


def plain_of_kind(value: Any) -> Any:
    """Return the plain value of a registered kind; others unchanged."""
    kind = kind_of_value(value)
    return value if kind is None else kind.plain(value)


add_conversion(plain_of_kind)
