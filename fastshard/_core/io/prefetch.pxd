from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.threads cimport fs_cond_t, fs_lock_t, fs_thread_t


ctypedef void (*work_t)(const void *) noexcept nogil


cdef struct task_t:
    work_t work                    # something else to do, with `what`; or NULL
    const void *what
    const uint8_t *at              # pages to bring, or NULL
    int fd                         # a file to read ahead of, or to forget part of
    uint64_t offset
    uint64_t size
    bint forget
    bint ask                       # ask for it before its turn comes


cdef struct line_t:                # one writes to a number, the other reads it
    task_t *tasks                  # a ring
    uint64_t room                  # a power of two
    uint64_t pushed                # tasks, by the consumer
    uint64_t finished              # by the thread
    uint64_t failed                # by the thread
    uint64_t sleeps                # the thread waits for `more`
    uint64_t waits                 # the consumer waits for `done`
    uint64_t stops
    fs_lock_t lock
    fs_cond_t more
    fs_cond_t done


cdef class Prefetcher:
    cdef line_t *line
    cdef fs_thread_t thread
    cdef bint running
    cdef unsigned generation       # of the process that started the thread
    cdef list owners               # of each task in the ring: keeps it mapped
    cdef uint64_t released         # tasks whose owners were let go
    cdef uint64_t push(self, task_t task, object owner) except 0
    cdef bint wait(self, uint64_t task) except -1
    cdef bint is_backlogged(self) noexcept
    cdef uint64_t failed(self) noexcept
    cdef int release(self) except -1
    cdef int stop(self) except -1
    cdef int start(self) except -1
    cdef line_t *renewed(self) except NULL
