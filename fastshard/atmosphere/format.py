"""Registration of ``at://`` URLs: blobs of the AT Protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from fastshard.formats.folder import Folder
from fastshard.formats.registry import Format

if TYPE_CHECKING:
    from fastshard._util.paths.remote_options import RemoteOptions
    from fastshard.atmosphere.blobs.source import BlobSource
    from fastshard.remote.options import Settings

__all__ = ["FORMAT"]


class BlobFormat(Format):
    """Format of ``at://`` blobs; it marks no directory."""

    name = "blobs"
    schemes = frozenset({"at"})

    def marks(self, folder: Folder) -> bool:
        return False

    def source(
        self, urls: Sequence[str], **options: Unpack[RemoteOptions]
    ) -> BlobSource:
        from fastshard.atmosphere.blobs.source import BlobSource

        return BlobSource.from_refs(urls, **options)

    def resolve(self, url: str, options: RemoteOptions) -> tuple[list[str], Settings]:
        from fastshard.atmosphere.commands import resolve

        return resolve(url, options)

    def download(
        self,
        name: str,
        settings: Settings,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        from fastshard.atmosphere.commands import download

        return download(name, settings, progress)


FORMAT = BlobFormat()
