"""Sources of shards stored as blobs of the AT Protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Unpack, cast

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url
from fastshard.atmosphere.blobs.cache import (
    BlobName,
    BlobSettings,
    fetch_url,
    parse_blob_url,
)
from fastshard.atmosphere.blobs.shards import BlobSet
from fastshard.atmosphere.client import Atmosphere
from fastshard.dataset.paths.listing import Location
from fastshard.errors import ShardNotFoundError
from fastshard.remote.options import Settings
from fastshard.typed.sources.listed import ListedSource

__all__ = ["BlobSource"]


class BlobSource(ListedSource):
    """Shards that are blobs in repositories of the AT Protocol.

    A blob is downloaded once, into the cache of ``cache_dir``, compared with its CID,
    and mapped: random access, shuffles and batches are those of a local shard.

    Parameters
    ----------
    blob_refs : sequence of Mapping
        ``{"did": ..., "cid": ...}`` of each shard, in order; with ``"size"`` in bytes,
        a blob of another size is refused before it is downloaded.
    pds_endpoint : str, optional
        URL of the server that has all of them. By default that of each DID's document.
    plc_url : str, optional
        URL of the directory of DIDs; by default that of ``ATDATA_PLC_URL``, or
        https://plc.directory.
    client : Atmosphere, optional
        Finds the servers of DIDs, without a `pds_endpoint`; its session is not used.
    **options
        Options of `fastshard.RemoteOptions`: ``cache_dir``, by default that of
        ``FASTSHARD_CACHE`` or ``~/.cache/fastshard``, ``cache_limit``, ``offline``,
        ``timeout``, ``private_hosts``.

    Raises
    ------
    ValueError
        A reference has no DID or no CID.

    Examples
    --------
    >>> from fastshard import typed
    >>> cid = "bafkreicdff6beodzj23e7triejvyylcfronm2mfwfwthyfw6emy3rnkqva"
    >>> source = typed.BlobSource([{"did": "did:plc:abc", "cid": cid}])
    >>> source.list_shards()[0][:30]
    'at://did:plc:abc/blob/bafkreic'
    """

    set_type = BlobSet

    def __init__(
        self,
        blob_refs: Sequence[Mapping[str, Any]],
        pds_endpoint: str | None = None,
        plc_url: str | None = None,
        *,
        client: Atmosphere | None = None,
        **options: Unpack[RemoteOptions],
    ) -> None:
        self.blob_refs = [_check_ref(ref) for ref in blob_refs]
        self.pds_endpoint = pds_endpoint
        self.plc_url = plc_url
        self._client = client
        self._options = options

    @classmethod
    def from_refs(
        cls,
        refs: Sequence[str | Mapping[str, Any]],
        *,
        pds_endpoint: str | None = None,
        plc_url: str | None = None,
        client: Atmosphere | None = None,
        **options: Unpack[RemoteOptions],
    ) -> BlobSource:
        """Return the source of blobs that are named by URLs or by references.

        Parameters
        ----------
        refs : sequence of str or Mapping
            ``at://did/blob/cid``; ``{"did": ..., "cid": ...}``; or the blob of a
            record, ``{"$type": "blob", "ref": {"$link": cid}, "size": ...}``, with
            ``"did"`` beside it.
        pds_endpoint, plc_url, client, **options
            As for the class.

        Raises
        ------
        ValueError
            There is no reference, or one is not of a blob.

        Examples
        --------
        >>> cid = "bafkreicdff6beodzj23e7triejvyylcfronm2mfwfwthyfw6emy3rnkqva"
        >>> source = typed.BlobSource.from_refs([f"at://did:plc:abc/blob/{cid}"])
        >>> source.blob_refs == [{"did": "did:plc:abc", "cid": cid}]
        True
        """
        if not refs:
            raise ValueError("refs cannot be empty")
        found = [_parse_ref(ref) for ref in refs]
        return cls(found, pds_endpoint, plc_url, client=client, **options)

    def list_shards(self) -> list[str]:
        """Return the URLs of the blobs, ``at://did/blob/cid``; no server is asked.

        Examples
        --------
        >>> ref = {"did": "did:plc:abc", "cid": "bafkreia"}
        >>> typed.BlobSource([ref]).list_shards()
        ['at://did:plc:abc/blob/bafkreia']
        """
        return [BlobName(ref["did"], ref["cid"]).url for ref in self.blob_refs]

    @property
    def shards(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The URLs of the blobs and their cached files, one after another."""
        settings = self.settings(self._options)
        for url in self.list_shards():
            yield url, open(fetch_url(url, settings), "rb")  # noqa: SIM115

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Open a blob's cached file; download it if it does not exist.

        Parameters
        ----------
        shard_id : str
            One of `list_shards`.

        Returns
        -------
        file object
            Readable and seekable.

        Raises
        ------
        KeyError
            The source has no such shard.
        RemoteError
            The blob cannot be read, or does not match its CID.
        OSError
            The cache cannot be written to.

        Examples
        --------
        >>> ref = {"did": "did:plc:abc", "cid": "bafkreia"}
        >>> try:
        ...     typed.BlobSource([ref]).open_shard("at://did:plc:abc/blob/other")
        ... except KeyError as error:
        ...     print(error)
        'Shard not found: at://did:plc:abc/blob/other'
        """
        if shard_id not in self.list_shards():
            raise KeyError(f"Shard not found: {shard_id}")
        return open(fetch_url(shard_id, self.settings(self._options)), "rb")

    @property
    def location(self) -> Location:
        """The parsed source."""
        return BlobLocation(self)

    @property
    def options(self) -> RemoteOptions:
        """The options with which blobs are read."""
        return cast(RemoteOptions, dict(self._options))

    def settings(self, options: RemoteOptions) -> BlobSettings:
        """Return checked options, with the sizes and the servers of the blobs."""
        sizes = {
            BlobName(ref["did"], ref["cid"]).url: ref["size"]
            for ref in self.blob_refs
            if "size" in ref
        }
        return BlobSettings(
            options, sizes, self.pds_endpoint, self.plc_url, self._client
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlobSource):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        urls = self.list_shards()
        shown = ", ".join(map(repr, urls[:2])) + (", ..." if len(urls) > 2 else "")
        return f"<BlobSource of {len(urls):,} blobs: {shown}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, unless an option is a secret."""
        Settings(self._options).__reduce__()
        args = self.blob_refs, self.pds_endpoint, self.plc_url, self._client
        return _make_again, (*args, self._options)


class BlobLocation(Location):
    """The blobs of a source, for `fastshard.open`."""

    source: BlobSource

    def __new__(cls, source: BlobSource) -> BlobLocation:
        urls = source.list_shards()
        if not urls:
            raise ShardNotFoundError("a source must name at least one blob")
        location = super().__new__(cls, "shards", tuple(map(Url, urls)))
        location.source = source
        return location

    def settings(self, options: RemoteOptions) -> Settings:
        """Return options for reading the blobs."""
        return self.source.settings(options)


def _make_again(
    refs: list[dict[str, Any]],
    pds_endpoint: str | None,
    plc_url: str | None,
    client: Atmosphere | None,
    options: RemoteOptions,
) -> BlobSource:
    """Unpickle a source."""
    return BlobSource(refs, pds_endpoint, plc_url, client=client, **options)


def _check_ref(ref: object) -> dict[str, Any]:
    """Return a reference with its known keys; check their types."""
    found: dict[str, Any] = {}
    if isinstance(ref, Mapping):
        for name in ("did", "cid"):
            value = ref.get(name)
            if isinstance(value, str) and value and "/" not in value:
                found[name] = value
        size = ref.get("size")
        if size is not None:
            if type(size) is not int or size < 0:
                raise ValueError(f"the size of a blob must be an int, got {size!r}")
            found["size"] = size
    if "did" not in found or "cid" not in found:
        raise ValueError(f"Invalid blob reference format: {str(ref)[:200]}")
    return found


def _parse_ref(ref: object) -> dict[str, Any]:
    """Parse a URL, or the blob of a record, as a reference."""
    if isinstance(ref, str):
        blob = parse_blob_url(ref)
        return {"did": blob.did, "cid": blob.cid}
    if isinstance(ref, Mapping) and "cid" not in ref:
        link = ref.get("ref")
        if isinstance(link, Mapping) and "$link" in link:
            if "did" not in ref:
                raise ValueError("the blob of a record requires 'did' field beside it")
            return _check_ref({**ref, "cid": link["$link"]})
    return _check_ref(ref)
