from libc.stdint cimport uint64_t

from fastshard._core.feeds cimport Feed


cdef class Taking:
    cdef Feed feed
    cdef object make
    cdef object describe
    cdef object on_error
    cdef Py_ssize_t taken_so_far   # items that were handed out, raised or passed over
    cdef Py_ssize_t skipped_so_far # those passed over
    cdef object queue              # deque of what waits
    cdef Py_ssize_t window
    cdef uint64_t window_bytes
    cdef uint64_t ahead            # bytes of what waits
    cdef bint ended
    cdef bint refused
    cdef uint64_t entered          # 1 while a thread is in it
    cdef object __weakref__
    cdef object advance(self)
    cdef object made(self, object item)
    cdef int finish(self) except -1
