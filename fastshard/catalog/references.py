"""References to datasets, schemas and lenses, in indexes and records."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from fastshard._util import texts
from fastshard._util.paths.urls import redact
from fastshard.atmosphere.at_uri import parse_label_ref

__all__ = [
    "LOCAL",
    "RECORD",
    "SCHEMA_PREFIXES",
    "DatasetReference",
    "lens_ref",
    "parse_dataset_ref",
    "parse_lens_ref",
    "parse_schema_ref",
    "schema_ref",
    "shorten",
]

LOCAL = "local"  # the repository in every index
SCHEME = "atdata://"
RECORD = "at://"
SCHEMAS = f"{SCHEME}{LOCAL}/schema/"
OLD_SCHEMAS = "local://schemas/"  # of old versions of atdata
SCHEMA_PREFIXES = (SCHEMAS, OLD_SCHEMAS)
LENSES = f"{SCHEME}{LOCAL}/lens/"
OTHER_COLLECTIONS = ("schema", "lens")
SHOWN = 200  # characters of a reference in an error


class DatasetReference(NamedTuple):
    """A parsed reference of a dataset.

    Attributes
    ----------
    repo : str or None
        A repository of the index; None for the network.
    name : str
        The dataset's name there, or the whole ``at://`` URI of a record.
    version : str or None
        The requested version.
    authority : str or None
        Handle or DID of the owner, of a name on the network; None for a URI.
    """

    repo: str | None
    name: str
    version: str | None = None
    authority: str | None = None


def parse_dataset_ref(ref: str, repos: Container[str]) -> DatasetReference:
    """Parse a reference of a dataset."""
    if not isinstance(ref, str):
        raise TypeError(f"a reference must be a str, got {type(ref).__name__}")
    if ref.startswith(RECORD):
        return DatasetReference(None, ref)
    if ref.startswith("@"):
        return _of_owner(*parse_label_ref(ref), repos)
    if ref.startswith(SCHEME):
        owner, _, rest = ref.removeprefix(SCHEME).partition("/")
        collection, slash, name = rest.partition("/")
        if slash and collection in OTHER_COLLECTIONS:
            raise ValueError(
                f"{shorten(ref)} is the reference of a {collection}, not of a dataset"
            )
        name = name if slash else collection
        if not (owner and name):
            raise ValueError(
                f"Invalid reference: {shorten(ref)}: expected atdata://repo/dataset/name"
            )
        return _of_owner(owner, name, None, repos)
    repo, slash, name = ref.partition("/")
    if not slash or repo not in repos:
        repo, name = LOCAL, ref
    if not name:
        raise ValueError(f"{shorten(ref)!r} has no name of a dataset")
    return DatasetReference(repo, name)


def _of_owner(
    owner: str, name: str, version: str | None, repos: Container[str]
) -> DatasetReference:
    """Return the reference of a name in a repository, or of an account."""
    if owner in repos:
        return DatasetReference(owner, name, version)
    return DatasetReference(None, name, version, owner)


def schema_ref(name: str, version: str) -> str:
    """Return the reference of a schema of an index."""
    return f"{SCHEMAS}{name}@{version}"


def parse_schema_ref(ref: str) -> tuple[str, str]:
    """Return the name and the version of a schema of an index."""
    name, version = _split(ref, "schema", SCHEMA_PREFIXES)
    return name.rpartition(".")[2] or name, version


def lens_ref(name: str, version: str) -> str:
    """Return the reference of a lens of an index."""
    return f"{LENSES}{name}@{version}"


def parse_lens_ref(ref: str) -> tuple[str, str]:
    """Return the name and the version of a lens: ``atdata://local/lens/name@1.0.0``."""
    return _split(ref, "lens", (LENSES,))


def _split(ref: str, kind: str, prefixes: tuple[str, ...]) -> tuple[str, str]:
    """Return the name and the version after one of several prefixes."""
    if not isinstance(ref, str):
        raise TypeError(f"a {kind} reference must be a str, got {type(ref).__name__}")
    for prefix in prefixes:
        if ref.startswith(prefix):
            break
    else:
        raise ValueError(
            f"Invalid {kind} reference: {shorten(ref)}: expected {prefixes[0]}"
            "Name@version"
        )
    name, _, version = ref.removeprefix(prefix).rpartition("@")
    if not (name and version):
        raise ValueError(
            f"{kind.capitalize()} reference must include version (@version): "
            f"{shorten(ref)}"
        )
    return name, version


def shorten(ref: str) -> str:
    """Return a reference for an error: shortened, without secrets."""
    return texts.shorten(redact(ref), SHOWN)
