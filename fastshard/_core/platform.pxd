"""Declarations of include/platform.h."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "platform.h" nogil:
    ctypedef struct fs_file_t:
        uint64_t nbytes
        uint64_t device
        uint64_t inode
        uint64_t owner
        int64_t mtime_ns
        int64_t ctime_ns
        uint32_t mode
    bint FS_HAVE_MMAP
    void *fs_map(int fd, size_t nbytes, bint writable)
    void *fs_map_small_pages(int fd, size_t nbytes, bint writable)
    void fs_unmap(void *base, size_t nbytes)
    int fs_stat(int fd, fs_file_t *file)
    int64_t fs_effective_user()
    int fs_stat_size(int fd, uint64_t *nbytes, int64_t *mtime_ns)
    void fs_close(int fd)
    int64_t fs_pread(int fd, void *to, size_t size, uint64_t offset)
    int64_t fs_pread_cached(int fd, void *to, size_t size, uint64_t offset)
    void fs_advise_file(int fd, uint64_t offset, uint64_t size)
    void fs_prefetch_line(const void *at)
    void fs_prefetch(const uint8_t *at)
    Py_ssize_t fs_load_relaxed(Py_ssize_t *at)
    void fs_store_relaxed(Py_ssize_t *at, Py_ssize_t value)
    bint fs_is_set(const int *flag)
    void fs_set(int *flag)
    bint fs_claim(uint8_t *at)
    bint fs_has_bit(const uint8_t *bits, size_t i)
    void fs_set_bit(uint8_t *bits, size_t i)
    void *fs_load_pointer(void **at)
    uint64_t fs_load(const uint64_t *at)
    uint32_t fs_load32(const uint32_t *at)
    size_t fs_count_plain(const uint8_t *at, size_t left)
    size_t fs_parse_digits(const uint8_t *at, size_t left, uint64_t *value)
    void fs_add(Py_ssize_t *counter, Py_ssize_t change)

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
