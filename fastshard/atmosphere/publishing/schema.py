"""Publishing of schemas; equal ones are published once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.lexicon import SCHEMA
from fastshard.atmosphere.loading.listing import list_collection
from fastshard.atmosphere.publishing.record import publish_record
from fastshard.atmosphere.records.schema import (
    JSON_SCHEMA,
    JsonSchemaFormat,
    SchemaRecord,
)
from fastshard.errors import DescriptionError, FormatError
from fastshard.typed.descriptions.json_schema import from_schema, to_json_schema
from fastshard.typed.descriptions.structure import Structure, describe
from fastshard.typed.descriptions.versions import (
    FIRST_VERSION,
    latest_version,
    next_patch,
)

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere

__all__ = ["SchemaPublisher", "schema_record"]


class SchemaPublisher:
    """Publishes schemas of sample types.

    Parameters
    ----------
    client : Atmosphere
        Logged in.

    Examples
    --------
    >>> from fastshard import typed
    >>> class Caption(typed.PackableSample):
    ...     text: str
    >>> uri = typed.SchemaPublisher(client).publish(Caption, version="1.0.0")
    >>> uri.collection
    'science.alt.dataset.schema'
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def publish(
        self,
        sample_type: type | Structure,
        *,
        name: str | None = None,
        version: str = FIRST_VERSION,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a schema as a new record, even if an equal one exists.

        Parameters
        ----------
        sample_type : type
            A packable class.
        name : str, optional
            By default that of the class.
        version : str, default "1.0.0"
            A semantic version.
        description : str, optional
            By default that of the class.
        metadata : dict, optional
            Without floats.
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        TypeError
            The class is not packable, or has a field that a schema cannot describe.
        ValueError
            The client is not logged in, or a value cannot be in a record.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> str(typed.SchemaPublisher(client).publish(Caption, version="2.0.0"))
        'at://did:plc:.../science.alt.dataset.schema/...'
        """
        record = schema_record(
            sample_type,
            name=name,
            version=version,
            description=description,
            metadata=metadata,
        )
        return publish_record(self.client, record, rkey)

    def find_or_publish(
        self,
        sample_type: type | Structure,
        *,
        version: str | None = None,
        description: str | None = None,
    ) -> AtUri:
        """Return the address of an equal schema, or publish one.

        Parameters
        ----------
        sample_type : type
            A packable class.
        version : str, optional
            The version wanted; where it has other fields already, and by default, the
            latest one with its last number increased, or 1.0.0.
        description : str, optional
            By default that of the class.

        Returns
        -------
        AtUri
            Of the latest record with the name, the fields and the version, if one is
            wanted.

        Raises
        ------
        TypeError
            The class is not packable, or has a field that a schema cannot describe.
        ValueError
            The client is not logged in, or a value cannot be in a record.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> publisher = typed.SchemaPublisher(client)
        >>> uri = publisher.find_or_publish(Caption)
        >>> publisher.find_or_publish(Caption) == uri
        True
        """
        return self._find_or_publish(sample_type, version, description)[0]

    def _find_or_publish(
        self,
        sample_type: type | Structure,
        version: str | None,
        description: str | None,
    ) -> tuple[AtUri, bool]:
        """Return the address of a schema, and whether it is new."""
        structure = _structure_of(sample_type)
        equal, taken = self._find(structure)
        known = latest_version(equal) if version is None else version
        if known in equal:
            return AtUri.parse(equal[known]), False
        if version is None or version in taken:
            version = next_patch(taken)
        uri = self.publish(structure, version=version, description=description)
        return uri, True

    def _find(self, structure: Structure) -> tuple[dict[str, str], set[str]]:
        """Return the addresses of equal schemas by version, and versions of the name.

        Of records with one version the latest counts.
        """
        equal: dict[str, str] = {}
        taken: set[str] = set()
        for record in list_collection(self.client, SCHEMA, self.client.did):
            version, uri = record.get("version"), str(record.uri)
            if record.get("name") != structure.name or not isinstance(version, str):
                continue
            try:
                SchemaRecord.from_record(record, uri=uri)
                found = from_schema(record, uri)
            except (FormatError, DescriptionError):  # of a later version, or broken
                continue
            taken.add(version)
            if found.equals(structure):
                equal.setdefault(version, uri)
        return equal, taken


def schema_record(
    sample_type: type | Structure,
    *,
    name: str | None = None,
    version: str = FIRST_VERSION,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> SchemaRecord:
    """Return the record of a sample type."""
    structure = _structure_of(sample_type)
    body = to_json_schema(structure)
    versions = body.pop("arrayFormatVersions", None)
    del body["$type"]
    return SchemaRecord(
        name or structure.name,
        version,
        JSON_SCHEMA,
        JsonSchemaFormat(body, versions),
        description=description or structure.description,
        metadata=None if metadata is None else dict(metadata),
    )


def _structure_of(sample_type: type | Structure) -> Structure:
    return sample_type if isinstance(sample_type, Structure) else describe(sample_type)
