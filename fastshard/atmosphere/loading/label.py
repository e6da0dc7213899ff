"""Loading of labels: from a name and a version to the dataset's record."""

from __future__ import annotations

from typing import Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.lexicon import ENTRY, LABEL, NAMESPACE
from fastshard.atmosphere.loading.listing import list_collection
from fastshard.atmosphere.loading.record import RecordLoader
from fastshard.atmosphere.records.checked import RecordFields
from fastshard.atmosphere.records.label import LabelRecord
from fastshard.typed.descriptions.versions import latest_version

__all__ = ["LabelLoader", "latest_label"]

RESOLVE = f"{NAMESPACE}.resolveLabel"


class LabelLoader(RecordLoader[LabelRecord]):
    """Loads labels, and resolves their names.

    Parameters
    ----------
    client : Atmosphere
        Logged in or not.

    Examples
    --------
    >>> from fastshard import typed
    >>> labels = typed.LabelPublisher(client)
    >>> uri = labels.publish("letters", entry_uri, version="1.0.0")
    >>> typed.LabelLoader(client).resolve("alice.test", "letters") == str(entry_uri)
    True
    """

    RECORD = LabelRecord

    def resolve(self, handle_or_did: str, name: str, version: str | None = None) -> str:
        """Return the address of the dataset that a label names.

        An AppView is asked, if the client has one. Else the records are listed: one
        request a page at first, then one.

        Parameters
        ----------
        handle_or_did : str
            The owner of the label.
        name : str
        version : str, optional
            By default the latest: by semantic version if all labels of the name have
            one, else the label made last.

        Returns
        -------
        str
            ``at://...``; in the owner's repository or another.

        Raises
        ------
        KeyError
            There is no such label.
        RecordError
            The label is damaged.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> try:
        ...     typed.LabelLoader(client).resolve("alice.test", "letters", "9.0.0")
        ... except KeyError as error:
        ...     print(error)
        "No label 'letters' version '9.0.0' found for 'alice.test'"
        """
        params = {"handle": handle_or_did, "name": name}
        if version is not None:
            params["version"] = version
        found = self._ask_appview(
            RESOLVE, params, lambda answer: _read_uri(answer, name, version)
        )
        if found is not None:
            return found
        return self.find(handle_or_did, name, version).dataset_uri

    def find(
        self, handle_or_did: str, name: str, version: str | None = None
    ) -> LabelRecord:
        """Return the label of a name and a version.

        Parameters
        ----------
        handle_or_did, name, version
            As for `resolve`.

        Raises
        ------
        KeyError
            There is no such label.
        RecordError
            The label is damaged.
        RemoteError
            A server cannot be asked.

        Examples
        --------
        >>> _ = typed.LabelPublisher(client).publish("letters", entry_uri, version="2")
        >>> typed.LabelLoader(client).find("alice.test", "letters").version
        '2'
        """
        labels = [
            LabelRecord.from_record(record, uri=str(record.uri))
            for record in list_collection(self.client, LABEL, handle_or_did)
            if record.get("name") == name
            and (version is None or record.get("version") == version)
        ]
        if not labels:
            of_version = "" if version is None else f" version {version!r}"
            raise KeyError(f"No label {name!r}{of_version} found for {handle_or_did!r}")
        return latest_label(labels)


def latest_label(labels: list[LabelRecord]) -> LabelRecord:
    """Return the latest of several labels, in the order of a listing."""
    versions = [label.version for label in labels]
    semantic = [version for version in versions if version is not None]
    latest = latest_version(semantic) if len(semantic) == len(versions) else None
    candidates = [
        label for label in labels if latest is None or label.version == latest
    ]
    return max(candidates, key=lambda label: label.created_at)


def _read_uri(answer: dict[str, Any], name: str, version: str | None) -> str:
    """Return the dataset's address in an AppView's answer."""
    fields = RecordFields(answer, RESOLVE)
    uri = fields.uri("uri")
    if AtUri.parse(uri).collection != ENTRY:
        raise fields.fail("not the address of a dataset", "uri")
    label = fields.mapping_or_none("label")
    if label is not None and (
        label.get("name") != name or version not in (None, label.get("version"))
    ):
        raise fields.fail("not the requested label", "label")
    return uri
