"""Base of loaders of records by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from warnings import warn

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.records.checked import AtRecord, RecordFields
from fastshard.errors import AppViewError, RecordError
from fastshard.typed.logs import get_logger

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.atmosphere.stored_record import StoredRecord

__all__ = ["RecordLoader"]

R = TypeVar("R", bound=AtRecord)
T = TypeVar("T")


class RecordLoader(Generic[R]):
    """Base of loaders.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.
    """

    RECORD: ClassVar[type[Any]]

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def get(self, uri: str | AtUri) -> StoredRecord:
        """Return a record of the collection.

        Returns
        -------
        StoredRecord
            The value, a dict; its fields are not checked.

        Raises
        ------
        RecordNotFoundError
            There is no such record; also a KeyError.
        ValueError
            It is the record of another collection, or the address is invalid.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> uri = typed.LabelPublisher(client).publish("digits", entry_uri)
        >>> typed.LabelLoader(client).get(uri)["name"]
        'digits'
        """
        record = self.client.get_record(uri)
        RecordFields(record, str(record.uri)).expect_type(self.RECORD.TYPE)
        return record

    def get_typed(self, uri: str | AtUri) -> R:
        """Return a record as an object, its fields checked.

        Returns
        -------
        EntryRecord, LabelRecord, LensRecord, SchemaRecord or LensVerificationRecord
            By the loader.

        Raises
        ------
        RecordNotFoundError
            There is no such record; also a KeyError.
        RecordError
            A field is missing, of another type, or too long.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> uri = typed.LabelPublisher(client).publish("digits", entry_uri)
        >>> typed.LabelLoader(client).get_typed(uri).version is None
        True
        """
        record = self.get(uri)
        found: R = self.RECORD.from_record(record, uri=str(record.uri))
        return found

    def list_all(
        self, repo: str | None = None, limit: int | None = None
    ) -> list[StoredRecord]:
        """Return the records of the collection in a repository, the latest first.

        Parameters
        ----------
        repo : str, optional
            DID or handle of its owner; by default the account of the session.
        limit : int, optional
            By default all.

        Raises
        ------
        SessionError
            There is no `repo`, and no session.
        RemoteError
            A server cannot be asked, or its pages do not end.

        Examples
        --------
        >>> [entry["name"] for entry in typed.DatasetLoader(client).list_all()]
        ['images']
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be positive, got {limit}")
        found: list[StoredRecord] = []
        if limit is not None and limit <= 100:
            page, _ = self.client.list_records(self.RECORD.TYPE, repo=repo, limit=limit)
            return page
        for record in self.client.iter_records(self.RECORD.TYPE, repo=repo):
            found.append(record)
            if len(found) == limit:
                break
        return found

    def _ask_appview(
        self, nsid: str, params: dict[str, str], read: Callable[[dict[str, Any]], T]
    ) -> T | None:
        """Return the AppView's answer; None without one, or if it fails.

        A failure is a warning: the records are read instead.
        """
        if not self.client.has_appview:
            return None
        try:
            return read(self.client.xrpc_query(nsid, params))
        except KeyError:  # not indexed (yet)
            return None
        except (AppViewError, RecordError, OSError) as error:
            reason = f"the AppView cannot be asked, so records are read: {error}"
            get_logger().warning("%s", reason)
            warn(reason, stacklevel=4)
            return None
