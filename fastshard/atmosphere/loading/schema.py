"""Loading of schemas, and of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.lexicon import NAMESPACE, SCHEMA
from fastshard.atmosphere.loading.listing import list_collection
from fastshard.atmosphere.loading.record import RecordLoader
from fastshard.atmosphere.records.checked import RecordFields
from fastshard.atmosphere.records.schema import SchemaRecord, check_record_version
from fastshard.typed.descriptions.json_schema import from_schema
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.versions import latest_version

if TYPE_CHECKING:
    from fastshard.atmosphere.stored_record import StoredRecord

__all__ = ["SchemaLoader", "parse_handle_ref"]

RESOLVE = f"{NAMESPACE}.resolveSchema"


class SchemaLoader(RecordLoader[SchemaRecord]):
    """Loads schemas.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.

    Examples
    --------
    >>> from fastshard import typed
    >>> uri = typed.SchemaPublisher(client).publish(ImageSample, version="1.0.0")
    >>> typed.SchemaLoader(client).get("@alice.test/ImageSample@1.0.0")["name"]
    'ImageSample'
    """

    RECORD = SchemaRecord

    def get(self, uri: str | AtUri) -> StoredRecord:
        """Return the record of a schema.

        Parameters
        ----------
        uri : str or AtUri
            The record's address, or ``@handle/TypeName@version``.

        Returns
        -------
        StoredRecord
            The value, a dict.

        Raises
        ------
        RecordNotFoundError, KeyError
            There is no such record.
        ValueError
            It is the record of another collection, or the reference is invalid.
        SchemaError
            The form of the record is a later one.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> uri = typed.SchemaPublisher(client).publish(ImageSample, version="1.1.0")
        >>> typed.SchemaLoader(client).get(uri)["version"]
        '1.1.0'
        """
        if isinstance(uri, str) and uri.startswith("@"):
            return self.resolve(*parse_handle_ref(uri))
        record = super().get(uri)
        check_record_version(RecordFields(record, str(record.uri)))
        return record

    def get_type(self, uri: str | AtUri) -> type[Any]:
        """Return the class that a schema describes.

        Parameters
        ----------
        uri : str or AtUri
            As for `get`.

        Returns
        -------
        type
            A packable class, one for each record.

        Raises
        ------
        RecordNotFoundError, KeyError
            There is no such record.
        ValueError
            The record is damaged, or cannot be a class.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> uri = typed.SchemaPublisher(client).publish(ImageSample, version="1.2.0")
        >>> typed.SchemaLoader(client).get_type(uri).__name__
        'ImageSample'
        """
        record = self.get(uri)
        address = str(record.uri)
        SchemaRecord.from_record(record, uri=address)
        return make_type(from_schema(record, address), address)

    def resolve(
        self, handle_or_did: str, schema_id: str, version: str | None = None
    ) -> StoredRecord:
        """Return the record of a schema's name and version.

        An AppView is asked, if the client has one. Else the records are listed: one
        request a page at first, then one.

        Parameters
        ----------
        handle_or_did : str
            The owner of the schema.
        schema_id : str
            The schema's name.
        version : str, optional
            By default the latest.

        Returns
        -------
        StoredRecord
            Of equal versions the one that was published last.

        Raises
        ------
        KeyError
            There is no such schema.
        SchemaError
            The form of the record is a later one.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> typed.SchemaLoader(client).resolve("alice.test", "Images")["version"]
        '1.0.0'
        """
        params = {"handle": handle_or_did, "schemaId": schema_id}
        if version is not None:
            params["version"] = version
        uri = self._ask_appview(RESOLVE, params, _read_uri)
        if uri is not None:
            told = self.get(uri)
            if told.get("name") == schema_id and version in (None, told.get("version")):
                return told
        found: dict[str, StoredRecord] = {}
        for record in list_collection(self.client, SCHEMA, handle_or_did):
            known = record.get("version")
            if record.get("name") == schema_id and isinstance(known, str):
                found.setdefault(known, record)
        if version is None and found:
            version = latest_version(found) or next(iter(found))
        if version is None or version not in found:
            of_version = "" if version is None else f" version {version!r}"
            raise KeyError(
                f"Schema {schema_id!r}{of_version} not found in repository "
                f"{handle_or_did!r}"
            )
        record = found[version]
        check_record_version(RecordFields(record, str(record.uri)))
        return record


def parse_handle_ref(ref: str) -> tuple[str, str, str]:
    """Return owner, name and version of ``@handle/TypeName@version``."""
    owner, slash, rest = ref.removeprefix("@").partition("/")
    name, at, version = rest.rpartition("@")
    if slash and owner and rest and not at:
        raise ValueError(
            f"Handle schema ref must include version: {ref[:300]}. Expected "
            "@handle/TypeName@version"
        )
    if not (ref.startswith("@") and owner and name and version):
        raise ValueError(
            f"Invalid handle schema ref: {ref[:300]}. Expected @handle/TypeName@version"
        )
    return owner, name, version


def _read_uri(answer: Mapping[str, Any]) -> str:
    """Return the schema's address in an AppView's answer."""
    fields = RecordFields(dict(answer), RESOLVE)
    uri = fields.uri("uri")
    if AtUri.parse(uri).collection != SCHEMA:
        raise fields.fail("not the address of a schema", "uri")
    return uri
