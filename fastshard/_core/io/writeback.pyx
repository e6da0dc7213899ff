"""Files under construction: their pages go to the disk while others are written."""

from libc.stdint cimport INT64_MAX, uint64_t

cdef extern from "writeback.h" nogil:
    void fs_start_writeback(int fd, uint64_t offset, uint64_t size)


def start_writeback(int fd, uint64_t offset, uint64_t size):
    """Start to write a range of a file to the disk, and do not wait for it.

    A later `os.fsync` has less left to do. A hint: failures are ignored. Systems other
    than Linux do nothing.

    Parameters
    ----------
    fd : int
    offset, size : int
        Bytes; the range may end behind the file.
    """
    if offset <= <uint64_t> INT64_MAX and size <= <uint64_t> INT64_MAX - offset:
        with nogil:
            fs_start_writeback(fd, offset, size)
