"""Schemas in an index's store: publication, look-up, types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._util.json import parse_json
from fastshard.catalog.references import (
    OLD_SCHEMAS,
    parse_schema_ref,
    schema_ref,
    shorten,
)
from fastshard.errors import DescriptionError, FormatError
from fastshard.typed.descriptions.json_schema import from_schema
from fastshard.typed.descriptions.local_schema import from_local_json, to_local_json
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import Structure, StructureField, describe
from fastshard.typed.descriptions.versions import (
    latest_version,
    next_patch,
    parse_version,
)

if TYPE_CHECKING:
    from fastshard.catalog.providers.protocol import IndexProvider
    from fastshard.typed.sample_type import PackableSample

__all__ = [
    "LocalSchemaRecord",
    "SchemaNamespace",
    "find_schema",
    "iter_schemas",
    "parse_stored",
    "publish_schema",
    "record_of",
    "type_of",
    "without_none",
]


class LocalSchemaRecord(NamedTuple):
    """A schema of an index.

    Attributes
    ----------
    name, version : str
    fields : tuple of StructureField
    ref : str
    description : str or None
    created_at : datetime or None

    Examples
    --------
    >>> record = index.get_schema_record(index.publish_schema(Caption))
    >>> [f"{field.name}: {field}" for field in record.fields]
    ['text: str', 'score: float']
    """

    name: str
    version: str
    fields: tuple[StructureField, ...]
    ref: str
    description: str | None = None
    created_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as JSON has it.

        Returns
        -------
        dict
            As of `Index.list_schemas`.

        Examples
        --------
        >>> record = index.get_schema_record(index.publish_schema(Caption))
        >>> record.to_dict()["fields"][0]["name"]
        'text'
        """
        structure = Structure(self.name, self.fields, self.version, self.description)
        time = None if self.created_at is None else self.created_at.isoformat()
        found = to_local_json(structure, self.version, time or "-") | {"$ref": self.ref}
        if time is None:
            del found["createdAt"]
        if self.description is None:
            del found["description"]
        return found


class SchemaNamespace:
    """Types made of the schemas of an index, by name.

    Examples
    --------
    >>> ref = index.publish_schema(ImageSample)
    >>> Made = index.get_schema_type(ref)
    >>> index.types.ImageSample is Made, "ImageSample" in index.types
    (True, True)
    """

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, type[PackableSample]] = {}

    def _register(self, made: type[PackableSample]) -> None:
        """Set the type of a name; the last one counts."""
        self._types[made.__name__] = made

    def get(self, name: str, default: Any = None) -> Any:
        """Return the type of a name.

        Parameters
        ----------
        name : str
        default : object, optional
            The result if there is none.

        Examples
        --------
        >>> Made = index.get_schema_type(index.publish_schema(Caption))
        >>> index.types.get("Caption") is Made, index.types.get("Other")
        (True, None)
        """
        return self._types.get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name == "_types" or name not in self._types:
            raise AttributeError(
                f"Schema {name!r} not loaded: get_schema_type() makes its type"
            )
        return self._types[name]

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[str]:
        return iter([*self._types])

    def __len__(self) -> int:
        return len(self._types)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._types]

    def __repr__(self) -> str:
        names = ", ".join(sorted(self._types)) or "empty"
        return f"SchemaNamespace({names})"


def publish_schema(
    provider: IndexProvider,
    sample_type: type,
    *,
    version: str | None = None,
    description: str | None = None,
) -> str:
    """Store the schema of a sample type, unless an equal one exists."""
    if not isinstance(sample_type, type):
        raise TypeError(
            f"sample_type must be a class, got {type(sample_type).__name__}"
        )
    if not all(
        callable(getattr(sample_type, each, None))
        for each in ("from_data", "from_bytes")
    ):
        raise TypeError(
            f"{sample_type.__name__} does not satisfy the Packable protocol: decorate "
            "it with packable, or derive it from PackableSample"
        )
    structure = describe(sample_type)
    structure.check()
    if description is not None:
        structure = structure._replace(description=description)
    if version is not None:
        parse_version(version)

    def choose(known: Mapping[str, str]) -> tuple[str, str | None]:
        chosen, old = choose_version(structure, version, known)
        if old is not None and description in (None, old.get("description")):
            return chosen, None
        created = None if old is None else old.get("createdAt")
        return chosen, json.dumps(to_local_json(structure, chosen, created))

    chosen = provider.store_schema_version(structure.name, choose)
    return schema_ref(structure.name, chosen)


def choose_version(
    structure: Structure, version: str | None, known: Mapping[str, str]
) -> tuple[str, dict[str, Any] | None]:
    """Return the version of a structure, and its schema if already stored."""
    if version is not None:
        if version not in known:
            return version, None
        ref = schema_ref(structure.name, version)
        stored = parse_stored(known[version], ref)
        if not from_local_json(stored, ref).equals(structure):
            raise ValueError(f"{ref} exists with other fields: publish another version")
        return version, stored
    like = {}
    for each, text in known.items():
        try:
            stored = parse_stored(text, "schema")
            if from_local_json(stored).equals(structure):
                like[each] = stored
        except DescriptionError:  # a damaged one counts as absent
            continue
    if not like:
        return next_patch(known), None
    chosen = latest_version(like) or max(like)
    return chosen, like[chosen]


def parse_stored(text: str, where: str) -> dict[str, Any]:
    """Return the object in a store's text."""
    try:
        found = parse_json(text, where)
    except FormatError as error:
        raise DescriptionError(error.reason, where) from None
    if not isinstance(found, dict):
        raise DescriptionError(f"must be an object, is {type(found).__name__}", where)
    return found


def find_schema(provider: IndexProvider, ref: str) -> dict[str, Any]:
    """Return the schema of a reference, as it is stored, with its ``$ref``."""
    name, version = parse_schema_ref(ref)
    text = provider.get_schema_json(name, version)
    if text is None:  # old versions of atdata stored `module.Name`
        full = ref.rpartition("@")[0].removeprefix(OLD_SCHEMAS).rpartition("/")[2]
        text = provider.get_schema_json(full, version) if full != name else None
        name = full if text is not None else name
    if text is None:
        for each, other, stored in provider.iter_schemas():
            if other == version and each.rpartition(".")[2] == name:
                name, text = each, stored
                break
    if text is None:
        raise KeyError(f"Schema not found: {shorten(ref)}")
    found = schema_ref(name, version)
    return parse_stored(text, f"{found} in {provider.location}") | {"$ref": found}


def iter_schemas(provider: IndexProvider) -> Iterator[dict[str, Any]]:
    """Iterate over all schemas, as they are stored, with their ``$ref``."""
    for name, version, text in provider.iter_schemas():
        ref = schema_ref(name, version)
        yield parse_stored(text, f"{ref} in {provider.location}") | {"$ref": ref}


def record_of(schema: Mapping[str, Any]) -> LocalSchemaRecord:
    """Return a schema as a record with attributes."""
    ref = schema.get("$ref")
    ref = ref if isinstance(ref, str) else ""
    structure = from_schema(schema, ref or "schema")
    created = None
    with suppress(TypeError, ValueError):  # times of other programs may be invalid
        created = datetime.fromisoformat(schema.get("createdAt", ""))
    return LocalSchemaRecord(
        structure.name,
        structure.version or "",
        structure.fields,
        ref,
        structure.description,
        created,
    )


def without_none(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as in lists: without values of None."""
    return {key: value for key, value in schema.items() if value is not None}


def type_of(schema: Mapping[str, Any]) -> type[PackableSample]:
    """Return the sample type of a schema that has its ``$ref``."""
    ref = schema["$ref"]
    return make_type(from_schema(schema, ref), ref)
