"""Sources of local files, as every format opens them."""

from fastshard._core.mapped cimport MappedFile
from fastshard._core.pagering cimport PageRing
from fastshard._core.residency cimport Residency
from fastshard._core.source cimport LocalFile, MappedSource, PreadSource, Source


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
):
    """The source of a file; see `source_of`."""
    cdef MappedFile mapped
    cdef Residency residency
    if mode == "pread":
        return PreadSource.__new__(PreadSource, file)
    mapped = MappedFile.__new__(
        MappedFile, file.fd, file.nbytes, file.path, writable=mode == "private",
        ring=ring,
    )
    residency = Residency.__new__(
        Residency, mapped, file.device, file.inode, file.owner,
        fd=file.fd if check_size else -1,
    )
    return MappedSource.__new__(
        MappedSource, mapped, residency, watched=prefetch or check_size
    )


def source_of(
    LocalFile file not None, str mode not None, *, bint prefetch=True,
    bint check_size=False, PageRing ring=None,
):
    """Return the source of a file, which ``"pread"`` keeps open; others need not.

    Parameters
    ----------
    file : LocalFile
    mode, prefetch, check_size
        As for `fastshard.open_shard`.
    ring : PageRing, optional
        Bounds the resident pages of what is mapped.

    Raises
    ------
    OSError
        It cannot be mapped.
    """
    return local_source(file, mode, prefetch, check_size, ring)
