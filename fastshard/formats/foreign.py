"""Files that are not tar shards, recognized by name or first bytes for messages."""

from __future__ import annotations

import re
from typing import NamedTuple

from fastshard.errors import FormatError

__all__ = [
    "HEAD",
    "Compression",
    "compression_of",
    "describe_contents",
    "describe_file",
    "describe_head",
    "describe_mds",
    "detect_compression",
    "explain_fault",
    "is_foreign_tar",
    "is_mds_shard",
    "is_tar_head",
    "suffix_of",
]

HEAD = 512  # bytes of a file that suffice to recognize it
WHITE = "\t\n\v\f\r"
LONGEST_CHARACTER = 4  # bytes in UTF-8
TAR_MAGIC = slice(257, 262)  # of ustar, GNU and pax headers
CHECKSUM = slice(148, 156)  # sum of a header's bytes with spaces here, octal

MAKE_SHARDS = (
    "write its samples to tar shards with fastshard.ShardWriter (docs: making shards)"
)


class Compression(NamedTuple):
    """A compression of whole tars."""

    name: str
    suffixes: tuple[str, ...]  # the first is that of any file, the others of tars
    magic: bytes  # at the start of the file
    command: str  # that decompresses

    def advise(self, path: str) -> str:
        """Return the advice for a tar in this compression."""
        is_named = path.lower().endswith(self.suffixes)
        how = f" (`{self.command} {path}`)" if is_named else ""
        return (
            f"compressed with {self.name}: decompress it{how}, for members of "
            "compressed tars cannot be reached"
        )


COMPRESSIONS = (
    Compression("gzip", (".gz", ".tgz", ".taz"), b"\x1f\x8b", "gunzip"),
    Compression("zstd", (".zst", ".tzst", ".zstd"), b"\x28\xb5\x2f\xfd", "unzstd"),
    Compression("bzip2", (".bz2", ".tbz2", ".tbz"), b"BZh", "bunzip2"),
    Compression("xz", (".xz", ".txz"), b"\xfd7zXZ\x00", "unxz"),
    Compression("lz4", (".lz4", ".tlz4"), b"\x04\x22\x4d\x18", "unlz4"),
)

LAST_SUFFIXES = {"tar"} | {end[1:] for each in COMPRESSIONS for end in each.suffixes}

MDS_SHARD = re.compile(r"\.mds(?:\.(?:br|bz2|gz|snappy|zstd?))?", re.IGNORECASE)
NAMES = {  # by suffix: the singular, with its article
    ".parquet": "a parquet file",
    ".arrow": "an Arrow file",
    ".feather": "an Arrow file",
    ".zip": "a zip archive",
    ".7z": "a 7z archive",
    ".rar": "a rar archive",
    ".lmdb": "an LMDB database",
    ".mdb": "an LMDB database",
    ".tfrecord": "a TFRecord file",
    ".tfrecords": "a TFRecord file",
    ".h5": "an HDF5 file",
    ".hdf5": "an HDF5 file",
    ".beton": "an FFCV file",
    ".bagz": "a bagz file",
    ".fsi": "an index",
    ".idx": "an index",
    ".csv": "a CSV file",
    ".tsv": "a TSV file",
    ".json": "a JSON file",
    ".jsonl": "a file of JSON lines",
    ".npy": "an array of NumPy",
    ".npz": "arrays of NumPy",
    ".pt": "a file of PyTorch",
    ".pth": "a file of PyTorch",
    ".pkl": "a pickle",
}
MAGIC = {
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF\r\n": "an HDF5 file",
    b"SQLite format 3\x00": "an SQLite database",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG\r\n": "a PNG image",
    b"<!DOCTYPE html": "an HTML page",
    b"<html": "an HTML page",
    b"version https://git-lfs": "a pointer of Git LFS (`git lfs pull` gets the file)",
}


def suffix_of(name: str) -> str:
    """Return a file's suffix in lower case: ``.jpg``, ``.tar.gz``, or ``""``."""
    stem, dot, last = name.rpartition(".")
    if not dot or not stem:
        return ""
    suffix = f".{last.lower()}"
    return f".tar{suffix}" if stem.lower().endswith(".tar") else suffix


def is_mds_shard(name: str) -> bool:
    """Return whether a file is a shard of an MDS dataset by its name."""
    found = MDS_SHARD.search(name)
    return found is not None and found.end() == len(name)


def describe_mds(path: str, has_index: bool = True) -> str:
    """Describe an MDS shard and the directory to open."""
    folder = path.rpartition("/")[0] or "."
    reason = f"{path} is not a shard (.tar) but one of an MDS dataset"
    if has_index:
        return f"{reason}: open the directory of its index.json, {folder}"
    return (
        f"{reason}, and {folder} has no index.json: fastshard.streaming.rebuild_index "
        "makes one"
    )


def compression_of(name: str) -> Compression | None:
    """Return the compression of a tar by its name (``.tar.gz``, ``.tgz``), or None."""
    suffix = suffix_of(name)
    for each in COMPRESSIONS:
        if suffix in each.suffixes[1:] or suffix in [f".tar{s}" for s in each.suffixes]:
            return each
    return None


def is_foreign_tar(name: str) -> bool:
    """Return whether a file is a tar by its name, but no shard: ``.TAR``, ``.tgz``."""
    if name.rpartition(".")[2].lower() not in LAST_SUFFIXES or name.startswith("."):
        return False  # at once, for a directory may have millions of files
    if is_mds_shard(name):
        return False
    if compression_of(name) is not None:
        return True
    return suffix_of(name) == ".tar" and not name.endswith(".tar")


def detect_compression(head: bytes) -> Compression | None:
    """Return the compression of a file by its first bytes, or None."""
    return next((each for each in COMPRESSIONS if head.startswith(each.magic)), None)


def is_tar_head(head: bytes) -> bool:
    """Return whether a file begins with a tar header: of ustar, GNU, pax or V7."""
    return head[TAR_MAGIC] == b"ustar" or _has_checksum(head)


def _has_checksum(head: bytes) -> bool:
    """Return whether the first block has the checksum of a tar header."""
    digits = head[CHECKSUM].strip(b" \0")
    if len(head) < HEAD or not re.fullmatch(rb"[0-7]{1,7}", digits):
        return False
    rest = head[: CHECKSUM.start] + b" " * 8 + head[CHECKSUM.stop : HEAD]
    return int(digits, 8) == sum(rest)


def describe_head(head: bytes) -> str | None:
    """Describe a file by its first bytes, with an article, or return None."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def describe_contents(path: str, head: bytes) -> str | None:
    """Return the kind of a file by its first bytes or its name; None of a tar."""
    kind = describe_head(head) or NAMES.get(suffix_of(path))
    return kind or ("a text file" if is_text(head) else None)


def is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are printable text."""
    text = head.decode("utf-8", "ignore")
    is_whole = len(head) - len(text.encode()) < LONGEST_CHARACTER
    return bool(text) and is_whole and all(c.isprintable() or c in WHITE for c in text)


def explain_fault(error: FormatError, head: bytes) -> FormatError:
    """Return the error of a file that is not a tar, if its first bytes say so."""
    if error.offset != 0 or not head:
        return error
    if is_mds_shard(error.path):
        return FormatError(describe_mds(error.path), error.path, 0)
    compression = detect_compression(head)
    if compression is not None:
        return FormatError(compression.advise(error.path), error.path, 0)
    kind = describe_contents(error.path, head)
    if kind is not None:
        return FormatError(f"expected a tar, got {kind}", error.path, 0)
    return error


def describe_file(path: str, head: bytes = b"") -> str:
    """Explain why a file is not a shard, with advice."""
    if is_mds_shard(path):
        return describe_mds(path)
    found = compression_of(path) or detect_compression(head)
    if found is not None:
        return f"{path} is not a shard (.tar): {found.advise(path)}"
    if is_tar_head(head):
        return (
            f"{path} is not a shard (.tar) by its name, but it is a tar: rename it, or "
            f"read it with fastshard.open_shard"
        )
    kind = describe_contents(path, head)
    if kind is None:
        return f"{path} is not a shard: shards are uncompressed .tar files"
    if kind == "an index":
        return f"{path} is not a shard (.tar) but {kind}: open the shards it belongs to"
    return f"{path} is not a shard (.tar) but {kind}: {MAKE_SHARDS}"
