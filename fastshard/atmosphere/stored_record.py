"""Records as a repository returns them: their values, addresses and CIDs."""

from __future__ import annotations

from typing import Any

from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.xrpc import AnswerFields

__all__ = ["StoredRecord"]

LONGEST_CID = 256  # characters


class StoredRecord(dict[str, Any]):
    """Value of a record, a dict, and where it is stored.

    Attributes
    ----------
    uri : AtUri
        With the DID of its repository.
    cid : str
        Of the value; ``""`` if the server did not tell it.
    """

    uri: AtUri
    cid: str

    def __init__(self, value: dict[str, Any], uri: AtUri, cid: str) -> None:
        super().__init__(value)
        self.uri = uri
        self.cid = cid

    @classmethod
    def of_answer(
        cls, answer: AnswerFields, did: str, collection: str, rkey: str | None = None
    ) -> StoredRecord:
        """Return the record of an answer."""
        try:
            uri = AtUri.parse(answer.take("uri", str))
        except ValueError as error:
            raise answer.error(f"'uri': {error}") from None
        key = uri.rkey if rkey is None else rkey
        if (uri.authority, uri.collection, uri.rkey) != (did, collection, key):
            expected = AtUri(did, collection, key)
            raise answer.error(f"expected the record {expected}, got {uri}")
        value = answer.take("value", dict)
        cid = answer.fields.get("cid")
        if cid is not None:
            answer.take("cid", str, LONGEST_CID)
        return cls(value, uri, cid or "")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.uri, self.cid)
