"""Writer of manifests."""

from __future__ import annotations

import os
from pathlib import Path

from fastshard._util.files import make_directory, replace_file
from fastshard.typed.manifest.rows import save_rows
from fastshard.typed.manifest.shard_manifest import ShardManifest, encode_header

__all__ = ["ManifestWriter"]


class ManifestWriter:
    """Writer of a manifest's two files.

    Parameters
    ----------
    base_path : str or path-like
        Path of the shard without ``.tar``.

    Examples
    --------
    >>> from fastshard import typed
    >>> manifest = typed.ManifestBuilder(ImageSample, "new-000000").build()
    >>> [path.name for path in typed.ManifestWriter("new-000000").write(manifest)]
    ['new-000000.manifest.json', 'new-000000.manifest.parquet']
    """

    def __init__(self, base_path: str | os.PathLike[str]) -> None:
        self._base = os.fspath(base_path)

    @property
    def json_path(self) -> Path:
        """Path of the header."""
        return Path(f"{self._base}.manifest.json")

    @property
    def parquet_path(self) -> Path:
        """Path of the table of samples."""
        return Path(f"{self._base}.manifest.parquet")

    def write(self, manifest: ShardManifest) -> tuple[Path, Path]:
        """Write a manifest; each file is replaced atomically.

        The header is written last, so that it never describes another table.

        Returns
        -------
        json_path, parquet_path : Path

        Raises
        ------
        MissingLibraryError
            pyarrow is not installed.
        TypeError
            A column holds values that Parquet does not.
        OSError
            A file cannot be written.

        Examples
        --------
        >>> from fastshard import typed
        >>> manifest = typed.ManifestBuilder(ImageSample, "new-000000").build()
        >>> paths = typed.ManifestWriter("new-000000").write(manifest)
        """
        header = encode_header(manifest)
        make_directory(os.path.dirname(os.path.abspath(self._base)))
        self._remove()
        with replace_file(self.parquet_path) as table:
            save_rows(manifest.rows, table)
        with replace_file(self.json_path) as text:
            text.write(header)
        return self.json_path, self.parquet_path

    def _remove(self) -> None:
        """Remove the files, the header first: the table alone is not a manifest."""
        for path in (self.json_path, self.parquet_path):
            path.unlink(missing_ok=True)
