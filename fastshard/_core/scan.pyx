"""The scan of a local tar shard: windows of pread under `tar_step`, no GIL.

Never through the mapping: a mapped scan costs up to 7.6 us a member depending
on how the page cache was filled, and a file that shrinks would kill it.

How much a window reads follows what the headers are apart. Among small members
one large read serves many. After large members only the next header is read,
unless that waits for the disk: then a large read costs no more than a small one.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fastshard._core.extents cimport (
    ExtentTable, columns_add, columns_free, columns_t, table_of, text_from,
)
from fastshard._core.pages cimport fs_now
from fastshard._core.platform cimport fs_pread, fs_pread_cached, fs_will_need
from fastshard._core.io.source cimport LocalFile
from fastshard._core.span cimport span_of
from fastshard._core.tar cimport *

import os

from cpython.exc cimport PyErr_CheckSignals

from fastshard.errors import FormatError

cdef enum:
    ROOM = (1 << 20) + 512         # bytes: a window, and any extension's payload
    NEAR = 6 << 10                 # bytes between headers that one window joins
    FAR = 1 << 20                  # bytes between headers that a disk need not join
    HEADERS = 4 << 10              # bytes of headers that are read on a guess
    WINDOW = 256 << 10             # bytes read at once among near headers
    MISSED = 1 << 20               # bytes read at once from a disk
    AHEAD = 4 << 20                # bytes that a disk is asked for in advance
    SURE = 1 << 10                 # members from which their number can be guessed
    SCAN_PAUSED = TAR_STATUSES + 1
    SCAN_OS_ERROR
    SCAN_SHRUNK

cdef uint64_t PAUSE = 50 * 1000 * 1000  # ns between looks at signals

cdef struct window_t:
    int fd
    int code                       # errno of a failed read
    bint asks_cache                # whether fs_pread_cached answers
    uint64_t nbytes
    uint64_t start                 # offset of the first byte held
    size_t held
    uint64_t asked_to              # offset up to which a disk was asked
    uint8_t *bytes

cdef struct scan_t:
    tar_t tar
    window_t window
    columns_t columns
    columns_t *starts              # where headers begin, as offsets; NULL: unasked
    uint64_t start                 # of the headers of the member that is next
    uint64_t stride                # running mean of bytes between headers
    size_t header_size             # bytes of the last member's headers
    uint64_t[<int> SKIPPED_KINDS] skipped

KINDS = {
    SKIPPED_HARD_LINK: "hard link",
    SKIPPED_SYMBOLIC_LINK: "symbolic link",
    SKIPPED_CHARACTER_DEVICE: "character device",
    SKIPPED_BLOCK_DEVICE: "block device",
    SKIPPED_DIRECTORY: "directory",
    SKIPPED_FIFO: "FIFO",
    SKIPPED_METADATA: "metadata",
    SKIPPED_UNKNOWN: "unknown",
}

FAULTS = {
    TAR_BAD_CHECKSUM: "not a tar header: its checksum is wrong",
    TAR_BAD_NUMBER: "a size that is negative, absurd or no number",
    TAR_HEADER_CUT: "the archive ends inside a header",
    TAR_SIZE_BEYOND: "the archive ends inside this member's data",
    TAR_PADDING_CUT: "the archive ends inside this member's padding",
    TAR_LONE_ZEROS: "one block of zeros, and more data behind it",
    TAR_EXTENSION_CUT: "the archive ends inside an extension header",
    TAR_EXTENSION_LARGE: "an extension header of more than 1 MiB",
    TAR_EXTENSIONS_LARGE: "extension headers of more than 64 MiB before one member",
    TAR_EXTENSION_ALONE: "an extension header without a member",
    TAR_BAD_PAX: "a malformed record in a pax header",
    TAR_BAD_NAME: "a name with a NUL in it",
    TAR_SPARSE: "a sparse member, which is stored condensed; unpack it with GNU tar",
    TAR_MULTI_VOLUME: "a part of a member of a multi-volume archive",
    TAR_INCREMENTAL: "a directory listing of an incremental backup",
    SCAN_SHRUNK: "the file ends here; it was longer when it was opened",
}


cdef int read_window(
    window_t *window, const need_t *need, size_t want, bint near
) noexcept nogil:
    """Fill the window from `need.offset` on; 0, or a SCAN_ status."""
    cdef uint64_t left = window.nbytes - need.offset
    cdef int64_t got = -1
    want = <size_t> min(<uint64_t> min(want, <size_t> ROOM), left)
    window.start = need.offset
    window.held = 0
    if window.asks_cache:
        got = fs_pread_cached(window.fd, window.bytes, want, need.offset)
        if got >= <int64_t> need.size:
            window.held = got
            return 0
        window.asks_cache = got >= 0 or errno == EAGAIN
        if near:
            want = <size_t> min(<uint64_t> MISSED, left)
            if need.offset + want > window.asked_to:
                window.asked_to = need.offset + want + AHEAD
                fs_will_need(window.fd, need.offset + want, AHEAD)
    while window.held < need.size:
        got = fs_pread(
            window.fd, window.bytes + window.held, want - window.held,
            need.offset + window.held,
        )
        if got <= 0:
            window.code = errno
            return SCAN_SHRUNK if got == 0 else SCAN_OS_ERROR
        window.held += got
    return 0


cdef int fill(scan_t *scan, const need_t *need) noexcept nogil:
    """Bring the bytes that a step needs into the window."""
    cdef size_t want = need.size
    if scan.stride <= NEAR:
        want = max(want, <size_t> WINDOW)
    else:
        want = max(want, min(scan.header_size, <size_t> HEADERS))
    return read_window(&scan.window, need, want, scan.stride <= FAR)


cdef int add_member(scan_t *scan) noexcept nogil:
    cdef tar_t *tar = &scan.tar
    scan.stride = (3 * scan.stride + (tar.at - scan.start)) // 4
    scan.header_size = <size_t> (tar.offset - scan.start)
    if scan.columns.count >= SURE and scan.columns.count == scan.columns.room:
        scan.columns.expected = 1.02 * <double> tar.nbytes / <double> tar.at
    if not columns_add(&scan.columns, tar.offset, tar.size, tar.name):
        return TAR_NO_MEMORY
    if scan.starts != NULL and not columns_add(
        scan.starts, scan.start, 0, span_of(tar.name.at, 0)
    ):
        return TAR_NO_MEMORY
    return TAR_MORE


cdef int walk(scan_t *scan) noexcept nogil:
    """Step on until the end, a fault, or a pause is due.

    The clock is asked once a window: those hold all that takes time.
    """
    cdef tar_t *tar = &scan.tar
    cdef window_t *window = &scan.window
    cdef need_t need
    cdef uint64_t skip
    cdef int status
    cdef uint64_t began = fs_now()
    while True:
        skip = tar.at - window.start
        if skip > window.held:
            skip = window.held
        status = tar_step(
            tar, window.bytes + skip, window.held - <size_t> skip, &need
        )
        if status == TAR_NEED:
            status = fill(scan, &need)
            if status != 0:
                return status
            if fs_now() - began > PAUSE:
                return SCAN_PAUSED
        elif status == TAR_MEMBER:
            if add_member(scan) != TAR_MORE:
                return TAR_NO_MEMORY
            scan.start = tar.at
        elif status == TAR_SKIPPED:
            scan.skipped[tar.skipped] += 1
            scan.start = tar.at
        elif status != TAR_MORE:
            return status
        elif tar.extension == 0 and not tar.pending:
            scan.start = tar.at    # a global header is no member's own


cdef object fault_of(scan_t *scan, int status, LocalFile file):
    member = None
    if status == TAR_NO_MEMORY:
        return MemoryError()
    if status == SCAN_OS_ERROR:
        return OSError(scan.window.code, os.strerror(scan.window.code), file.path)
    if status in (
        TAR_SPARSE, TAR_MULTI_VOLUME, TAR_INCREMENTAL, TAR_SIZE_BEYOND, TAR_PADDING_CUT
    ):
        member = text_from(scan.tar.name)
    offset = scan.tar.fault_at
    if status == SCAN_SHRUNK:
        offset = scan.window.start + scan.window.held
    return FormatError(FAULTS[status], file.path, offset, member)


def scan_tar(LocalFile file not None, progress=None):
    """Walk over the headers of a tar file without the GIL.

    Parameters
    ----------
    file : LocalFile
    progress : callable, optional
        Called some 20 times a second with the bytes walked over so far. What it
        raises ends the scan.

    Returns
    -------
    table : ExtentTable
        The regular members, in the file's order.
    skipped : dict of str to int
        How many of each kind are stored that are no members.
    end : int
        Where the archive ends, in bytes from the start of the file.

    Raises
    ------
    FormatError
        The file breaks the format, or holds what cannot be read as stored.
    OSError
        Reading failed.
    """
    cdef scan_t scan
    memset(&scan, 0, sizeof(scan))
    try:
        run(&scan, file, progress)
        skipped = {
            kind: scan.skipped[i] for i, kind in KINDS.items() if scan.skipped[i]
        }
        return table_of(&scan.columns), skipped, scan.tar.at
    finally:
        release(&scan)


def scan_sound(LocalFile file not None):
    """Find the members of a tar that stand before its first fault, if it has one.

    Parameters
    ----------
    file : LocalFile

    Returns
    -------
    table : ExtentTable
        The regular members, in the file's order, each of them whole.
    end : int
        Where the last one ends with its padding, in bytes from the start.
    fault : FormatError or None
        What stands behind; None: the archive ends as it should.

    Raises
    ------
    OSError
        Reading failed.
    """
    cdef scan_t scan
    cdef object fault = None
    cdef uint64_t end = 0
    cdef size_t last
    memset(&scan, 0, sizeof(scan))
    try:
        try:
            run(&scan, file, None)
        except FormatError as error:
            fault = error
        if scan.columns.count > 0:
            last = scan.columns.count - 1
            end = scan.columns.offsets[last] + scan.columns.sizes[last]
            end += (512 - end % 512) % 512
        return table_of(&scan.columns), end, fault
    finally:
        release(&scan)


def header_starts(LocalFile file not None, progress=None):
    """Return where the headers of each regular member begin.

    Parameters
    ----------
    file : LocalFile
    progress : callable, optional
        As for `scan_tar`.

    Returns
    -------
    starts : bytes
        A native u64 for each member: the first of its headers, those of its own
        extensions included, global ones not; bytes from the start of the file.
    end : int
        Where the archive's own end begins, its blocks of zeros.

    Raises
    ------
    FormatError, OSError
        As for `scan_tar`.
    """
    cdef scan_t scan
    cdef columns_t starts
    memset(&scan, 0, sizeof(scan))
    memset(&starts, 0, sizeof(starts))
    scan.starts = &starts
    try:
        run(&scan, file, progress)
        return (
            PyBytes_FromStringAndSize(<const char *> starts.offsets, 8 * starts.count),
            scan.start,
        )
    finally:
        columns_free(&starts)
        release(&scan)


cdef void release(scan_t *scan) noexcept:
    tar_free(&scan.tar)
    columns_free(&scan.columns)
    free(scan.window.bytes)


cdef int run(scan_t *scan, LocalFile file, object progress) except -1:
    """Walk over a whole file; `release` what it took, whatever happens."""
    cdef int status = SCAN_PAUSED
    tar_init(&scan.tar, file.nbytes)
    scan.window.fd = file.fd
    scan.window.nbytes = file.nbytes
    scan.window.asks_cache = True
    scan.window.bytes = <uint8_t *> malloc(ROOM)
    if scan.window.bytes == NULL:
        raise MemoryError
    while status == SCAN_PAUSED:
        with nogil:
            status = walk(scan)
        PyErr_CheckSignals()
        if progress is not None:
            progress(min(scan.tar.at, file.nbytes))
    if status != TAR_END:
        raise fault_of(scan, status, file)
    return 0
