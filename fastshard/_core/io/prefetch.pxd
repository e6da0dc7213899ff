from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.threads cimport fs_cond_t, fs_lock_t, fs_thread_t


ctypedef void (*callback_t)(const void *) noexcept nogil


cdef struct task_t:
    callback_t callback            # call it with `argument`; NULL: not a callback
    const void *argument
    const uint8_t *at              # pages to populate, or NULL
    int fd                         # a file to read ahead in, or to evict a part of
    uint64_t offset
    uint64_t size
    bint evict                     # drop the extent of `fd` from the page cache
    bint advise                    # advise the kernel of it before its turn


cdef struct queue_t:               # each counter has one writer
    task_t *tasks                  # a ring
    uint64_t capacity              # tasks; a power of two
    uint64_t pushed                # tasks so far; written by the consumer
    uint64_t finished              # tasks so far; written by the thread
    uint64_t failed                # tasks so far; written by the thread
    uint64_t sleeps                # the thread waits for `more`
    uint64_t waits                 # the consumer waits for `done`
    uint64_t stops                 # the thread is to end
    fs_lock_t lock
    fs_cond_t more                 # a task was pushed
    fs_cond_t done                 # a task was finished


cdef class Prefetcher:
    cdef queue_t *queue
    cdef fs_thread_t thread
    cdef bint running
    cdef unsigned generation       # of the process that started the thread
    cdef list owners               # of each task in the ring: keeps its memory
    cdef uint64_t released         # tasks whose owners were released
    cdef uint64_t push(self, task_t task, object owner) except 0
    cdef bint wait(self, uint64_t task) except -1
    cdef bint is_backlogged(self) noexcept
    cdef uint64_t failure_count(self) noexcept
    cdef int release(self) except -1
    cdef int stop(self) except -1
    cdef int start(self) except -1
    cdef queue_t *current_queue(self) except NULL
