"""Publishing of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.publishing.record import publish_record
from fastshard.atmosphere.records.label import LabelRecord

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere

__all__ = ["LabelPublisher"]


class LabelPublisher:
    """Publishes labels: names, with versions, of datasets.

    Parameters
    ----------
    client : Atmosphere
        Logged in.

    Examples
    --------
    >>> from fastshard import typed
    >>> uri = typed.LabelPublisher(client).publish("best", entry_uri, version="1.0.0")
    >>> typed.LabelLoader(client).resolve("alice.test", "best") == str(entry_uri)
    True
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def publish(
        self,
        name: str,
        dataset_uri: str | AtUri,
        *,
        version: str | None = None,
        description: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a label.

        Parameters
        ----------
        name : str
        dataset_uri : str or AtUri
            Address of the dataset's record, in this repository or another.
        version : str, optional
        description : str, optional
        rkey : str, optional
            The record's key; by default the server makes one.

        Returns
        -------
        AtUri
            The record's address.

        Raises
        ------
        ValueError
            The client is not logged in, or a value is too long, or no address.
        RemoteError
            The server refuses the record.

        Examples
        --------
        >>> typed.LabelPublisher(client).publish("worst", entry_uri).collection
        'science.alt.dataset.label'
        """
        record = LabelRecord(
            name, str(dataset_uri), version=version, description=description
        )
        return publish_record(self.client, record, rkey)
