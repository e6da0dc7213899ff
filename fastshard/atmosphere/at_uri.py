"""Addresses of records: ``at://authority/collection/key``, and their parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastshard._util import texts
from fastshard._util.paths.urls import redact

__all__ = ["AtUri", "is_did", "is_handle", "is_nsid", "parse_label_ref"]

LONGEST = 8192  # characters of an address
LONGEST_DID = 2048
LONGEST_HANDLE = 253
DID = re.compile(r"did:[a-z]+:[A-Za-z0-9._:%-]*[A-Za-z0-9._-]", re.ASCII)
LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HANDLE = re.compile(rf"(?:{LABEL}\.)+[A-Za-z](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?")
COLLECTION = re.compile(rf"{LABEL}(?:\.{LABEL})*")
NSID = re.compile(rf"{LABEL}(?:\.{LABEL})+\.[A-Za-z][A-Za-z0-9]{{0,62}}")
LONGEST_NSID = 317
SHOWN = 200  # characters of a reference in an error
KEY = re.compile(r"[A-Za-z0-9._:~-]{1,512}")


def is_did(text: str) -> bool:
    """Return whether a text is a DID of any method."""
    return len(text) <= LONGEST_DID and DID.fullmatch(text) is not None


def is_handle(text: str) -> bool:
    """Return whether a text is a handle: a domain name of two labels or more."""
    return len(text) <= LONGEST_HANDLE and HANDLE.fullmatch(text) is not None


def is_nsid(text: str) -> bool:
    """Return whether a text names a method, or a collection, of the protocol."""
    return len(text) <= LONGEST_NSID and NSID.fullmatch(text) is not None


def parse_label_ref(ref: str) -> tuple[str, str, str | None]:
    """Return owner, name and version of ``@handle/name[@version]``."""
    owner, _, rest = ref.removeprefix("@").partition("/")
    name, at, version = rest.rpartition("@") if "@" in rest else (rest, "", "")
    if not (owner and name) or (at and not version):
        raise ValueError(
            f"Invalid indexed path format: {texts.shorten(redact(ref), SHOWN)}: "
            "expected @handle/name or @handle/name@version"
        )
    return owner, name, version or None


@dataclass(frozen=True)
class AtUri:
    """Address of a record in a repository of the AT Protocol.

    Parameters
    ----------
    authority : str
        DID or handle of the repository's owner.
    collection : str
        Name of the collection.
    rkey : str
        The record's key in the collection.

    Raises
    ------
    TypeError, ValueError
        A part is not one of an address.

    Examples
    --------
    >>> from fastshard.typed import AtUri
    >>> uri = AtUri("did:plc:abc", "science.alt.dataset.entry", "3n2uxbndfy22e")
    >>> str(uri)
    'at://did:plc:abc/science.alt.dataset.entry/3n2uxbndfy22e'
    """

    authority: str
    collection: str
    rkey: str

    def __post_init__(self) -> None:
        for name in ("authority", "collection", "rkey"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        if not (is_did(self.authority) or is_handle(self.authority)):
            raise ValueError(f"{_shorten(self.authority)} is not a DID or a handle")
        collection = self.collection
        if len(collection) > LONGEST_NSID or not COLLECTION.fullmatch(collection):
            raise ValueError(f"{_shorten(collection)} is not the name of a collection")
        if self.rkey in (".", "..") or not KEY.fullmatch(self.rkey):
            raise ValueError(f"{_shorten(self.rkey)} is not the key of a record")

    @classmethod
    def parse(cls, uri: str | AtUri) -> AtUri:
        """Parse an address; return a parsed one unchanged.

        Parameters
        ----------
        uri : str or AtUri
            ``at://authority/collection/key``.

        Raises
        ------
        TypeError
            It is not a str.
        ValueError
            It is not the address of a record.

        Examples
        --------
        >>> uri = typed.AtUri.parse("at://alice.test/science.alt.dataset.label/first")
        >>> uri.authority, uri.rkey
        ('alice.test', 'first')
        """
        if isinstance(uri, AtUri):
            return uri
        if not isinstance(uri, str):
            raise TypeError(f"an at:// URI must be a str, got {type(uri).__name__}")
        if len(uri) > LONGEST:
            raise ValueError(f"an at:// URI of {len(uri):,} characters is too long")
        parts = uri.removeprefix("at://").split("/")
        if not uri.startswith("at://") or len(parts) != 3:
            raise ValueError(
                f"expected at://authority/collection/key, got {_shorten(uri)}"
            )
        try:
            return cls(*parts)
        except ValueError as error:
            raise ValueError(f"{error}, in {_shorten(uri)}") from None

    def __str__(self) -> str:
        return f"at://{self.authority}/{self.collection}/{self.rkey}"


def _shorten(text: str) -> str:
    """Return a quoted text of bounded length, for errors."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}..."
