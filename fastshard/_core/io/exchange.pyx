"""Ranges over plain HTTP without the GIL: requests, strict responses, an event loop.

A `Scatter` receives a range of bytes into several buffers. A `RangeExchange` accepts
one response only (`head.pxd`). After any other one the caller sends the request again
by a general client.

`ExchangeLoop` drives many connections from one thread. Other threads add exchanges and
idle connections to it under its lock. A child of fork must not use its parent's loop.

One extension module: receipt and the steps of an exchange are called for each event.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.io.head cimport expected_t, head_length, is_expected
from fastshard._core.pages cimport fs_exact_now, fs_pages_cached, fs_populate_buffer
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.threads cimport (
    fs_atomic_load, fs_atomic_store, fs_generation, fs_lock, fs_lock_free, fs_lock_init,
    fs_lock_t, fs_unlock, fs_watch_forks,
)

import os

cdef extern from "receive.h" nogil:
    bint FS_CAN_RECEIVE
    ctypedef struct fs_slice_t:
        uint8_t *to
        size_t size
    int64_t fs_send(int fd, const uint8_t *start, size_t size)
    bint fs_is_silent(int fd)
    bint fs_wait_for(int fd, bint output, int wait_ms)
    int fs_connect_error(int fd)
    int64_t fs_receive(
        int fd, const fs_slice_t *slices, size_t count, uint8_t *scratch, size_t room,
        int wait_ms,
    )

cdef extern from "events.h" nogil:
    bint FS_HAS_EVENTS
    enum:
        FS_MOST_EVENTS
    uint32_t FS_BELL
    ctypedef struct fs_events_t:
        pass
    int fs_events_open(fs_events_t *events)
    void fs_events_close(fs_events_t *events, bint is_child)
    int fs_events_change(
        fs_events_t *events, int fd, uint32_t tag, bint output, bint is_new
    )
    void fs_events_remove(fs_events_t *events, int fd)
    void fs_events_ring(fs_events_t *events)
    int fs_events_wait(fs_events_t *events, uint32_t *tags, int wait_ms)

cdef enum:
    MAX_HEAD = 16 << 10            # bytes of headers
    FIRST = 1 << 10                # bytes of the first receive; the body goes elsewhere
    MAX_CONNECTIONS = 4096         # of a loop
    MAX_STALE = 64                 # idle connections that an exchange finds closed
    MANY = 64                      # finished exchanges that are not held back
    SCRATCH = 64 << 10             # bytes; receives bytes that no buffer wants
    LARGE_COPY = 32 << 10          # bytes; copies of this size release the GIL
    ENDED = -2                     # status besides an errno: the stream ended

cdef uint64_t HOLD = 10_000_000    # ns that exchanges without a waiter are held
cdef uint64_t MAX_WAIT = 200_000_000  # ns between checks for signals
cdef uint64_t NEVER = <uint64_t> -1

# Statuses of exchanges.
cdef enum:
    DONE = 0                       # the range was received
    RUNNING
    UNEXPECTED                     # another response, or a malformed one
    BROKEN                         # the connection ended or failed
    NO_CONNECTION                  # no connection could be made
    TIMED_OUT
    CANCELLED
    STALE                          # the peer had closed the idle connection

# States of connections.
cdef enum:
    FREE
    ARRIVING                       # added by another thread, not accepted yet
    CONNECTING
    IDLE
    SENDING
    IN_HEAD
    IN_BODY
    LEFT_IDLE                      # out of the loop; Python keeps its socket
    LEFT_CLOSED                    # out of the loop; Python closes its socket

CAN_RECEIVE = bool(FS_CAN_RECEIVE)
CAN_LOOP = bool(FS_HAS_EVENTS)
COMPLETE, ABSENT, EXPIRED, DROPPED = DONE, NO_CONNECTION, TIMED_OUT, CANCELLED

if fs_watch_forks() != 0:
    raise MemoryError("cannot register a fork handler")


cdef struct scatter_t:
    fs_slice_t *slices
    size_t count                   # slices
    size_t next                    # slice that receives the next byte
    uint64_t left                  # bytes to receive

cdef struct exchange_t:
    exchange_t *next
    PyObject *owner                # RangeExchange
    span_t request
    expected_t expected
    scatter_t *scatter
    uint64_t timeout               # ns from the request's begin
    uint64_t begun, ended          # ns of `fs_exact_now`
    uint64_t cancelled             # atomic
    uint32_t server
    uint32_t sends                 # requests sent
    uint32_t stale                 # connections that were closed
    int status
    bint keeps                     # whether the server keeps the connection open

cdef struct connection_t:
    int fd
    int state
    uint32_t server
    bint is_used                   # whether it had a response before
    bint has_output                # whether events of output are, or will be requested
    exchange_t *exchange
    uint64_t begun, until
    size_t sent                    # bytes of the request
    uint8_t *head
    size_t head_size               # bytes received into `head`

cdef struct list_t:
    exchange_t *first
    exchange_t *last
    size_t count


cdef int ms_until(uint64_t until) noexcept nogil:
    """Return the time left until a moment of `fs_exact_now`, in ms."""
    cdef uint64_t now = fs_exact_now()
    cdef uint64_t left = (until - now) // 1_000_000 + 1 if until > now else 0
    return <int> min(left, <uint64_t> 1_000_000)


cdef void scatter_advance(scatter_t *scatter, uint64_t size) noexcept nogil:
    """Move on by `size` bytes that were received."""
    cdef fs_slice_t *slice
    scatter.left -= size
    while size > 0:
        slice = &scatter.slices[scatter.next]
        if size < slice.size:
            slice.size -= size
            if slice.to != NULL:
                slice.to += size
            return
        size -= slice.size
        scatter.next += 1


cdef void scatter_copy(
    scatter_t *scatter, const uint8_t *data, size_t size
) noexcept nogil:
    """Copy bytes to the slices; there must not be more than `left`."""
    cdef size_t part
    cdef fs_slice_t *slice
    while size > 0:
        slice = &scatter.slices[scatter.next]
        part = min(size, slice.size)
        if slice.to != NULL:
            memcpy(slice.to, data, part)
        scatter_advance(scatter, part)
        data += part
        size -= part


cdef int64_t scatter_receive(
    scatter_t *scatter, int fd, uint8_t *scratch, int wait_ms
) noexcept nogil:
    """Receive once; return as `fs_receive`. `scratch` has SCRATCH bytes."""
    cdef int64_t got = fs_receive(
        fd, scatter.slices + scatter.next, scatter.count - scatter.next, scratch,
        SCRATCH, wait_ms,
    )
    if got > 0:
        scatter_advance(scatter, got)
    return got


@cython.final
cdef class Scatter:
    """Range of an object, and the buffers that receive parts of it."""

    cdef scatter_t state
    cdef Py_buffer *buffers
    cdef size_t held               # buffers
    cdef uint8_t *scratch

    def __cinit__(self, uint64_t start, uint64_t end, parts):
        cdef uint64_t at = start
        cdef uint64_t offset, size
        cdef size_t count = len(parts)
        if end < start:
            raise ValueError(f"expected start <= end, got {start} and {end}")
        self.state.slices = <fs_slice_t *> calloc(2 * count + 1, sizeof(fs_slice_t))
        self.buffers = <Py_buffer *> calloc(count + 1, sizeof(Py_buffer))
        if self.state.slices == NULL or self.buffers == NULL:
            raise MemoryError
        for offset, part in parts:
            if self.held == count:
                raise ValueError("parts were added meanwhile")
            PyObject_GetBuffer(part, &self.buffers[self.held], PyBUF_WRITABLE)
            self.held += 1
            size = self.buffers[self.held - 1].len
            if offset < at or offset > end or size > end - offset:
                raise ValueError(
                    f"part of {size:,} bytes at {offset:,} overlaps the one before "
                    f"or is outside the range {start:,} to {end:,}"
                )
            self.add(NULL, offset - at)
            self.add(<uint8_t *> self.buffers[self.held - 1].buf, size)
            at = offset + size
        self.add(NULL, end - at)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.held):
            PyBuffer_Release(&self.buffers[i])
        free(self.buffers)
        free(self.state.slices)
        free(self.scratch)

    def __reduce__(self):
        raise TypeError("a Scatter does not pickle")

    cdef int add(self, uint8_t *to, uint64_t size) except -1:
        """Append a slice; `to` NULL: discard its bytes."""
        if size > 0:
            self.state.slices[self.state.count].to = to
            self.state.slices[self.state.count].size = size
            self.state.count += 1
            self.state.left += size
        return 0

    cdef void populate(self) noexcept:
        """Allocate the pages of large buffers; other threads may receive meanwhile.

        Those of memory that is filled again have pages: to populate them takes longer
        than to look.
        """
        cdef size_t i
        cdef uint8_t *at
        cdef uint64_t size
        for i in range(self.held):
            at = <uint8_t *> self.buffers[i].buf
            size = self.buffers[i].len
            if size >= LARGE_COPY:
                with nogil:
                    if fs_pages_cached(at, size) != 1:
                        fs_populate_buffer(at, size)

    @property
    def left(self):
        """Bytes to receive."""
        return self.state.left

    def feed(self, data):
        """Copy the next bytes of the range to the buffers."""
        cdef Py_buffer buffer
        cdef const uint8_t *start = bytes_of(data, &buffer)
        cdef size_t size = buffer.len
        try:
            if size > self.state.left:
                raise ValueError(
                    f"got {size:,} bytes, {self.state.left:,} are left of the range"
                )
            if size >= LARGE_COPY:
                with nogil:        # page faults of new buffers take most of the time
                    scatter_copy(&self.state, start, size)
            else:
                scatter_copy(&self.state, start, size)
        finally:
            PyBuffer_Release(&buffer)

    def receive(self, int fd, uint64_t until):
        """Receive until the range is complete, the stream ends, or time is up."""
        cdef uint64_t before = self.state.left
        cdef int status
        if self.scratch == NULL:
            self.scratch = <uint8_t *> malloc(SCRATCH)
            if self.scratch == NULL:
                raise MemoryError
        with nogil:
            status = self.receive_rest(fd, min(until, fs_exact_now() + MAX_WAIT))
        if status > 0 and status != EAGAIN:
            raise OSError(status, os.strerror(status))
        return before - self.state.left, status == ENDED

    cdef int receive_rest(self, int fd, uint64_t until) noexcept nogil:
        """Receive until nothing is left; return 0, ENDED or an errno.

        EAGAIN: time is up.
        """
        cdef int64_t got
        while self.state.left > 0:
            got = scatter_receive(&self.state, fd, self.scratch, ms_until(until))
            if got <= 0:
                return ENDED if got == 0 else errno
            if fs_exact_now() >= until:
                return EAGAIN if self.state.left > 0 else 0
        return 0


cdef void append(list_t *items, exchange_t *item) noexcept nogil:
    item.next = NULL
    if items.last != NULL:
        items.last.next = item
    else:
        items.first = item
    items.last = item
    items.count += 1


cdef void prepend(list_t *items, exchange_t *item) noexcept nogil:
    item.next = items.first
    items.first = item
    if items.last == NULL:
        items.last = item
    items.count += 1


cdef exchange_t *unlink(
    list_t *items, exchange_t *before, exchange_t *item
) noexcept nogil:
    """Remove an item; `before` is the one in front of it, or NULL. Return the next."""
    cdef exchange_t *following = item.next
    if before == NULL:
        items.first = following
    else:
        before.next = following
    if following == NULL:
        items.last = before
    items.count -= 1
    item.next = NULL
    return following


cdef int begin(connection_t *conn, exchange_t *item) noexcept nogil:
    """Begin an exchange on an idle connection; return its status."""
    item.begun = fs_exact_now()
    conn.until = NEVER
    if item.timeout < NEVER - item.begun:
        conn.until = item.begun + item.timeout
    if not fs_is_silent(conn.fd):
        item.stale += 1
        return STALE if conn.is_used and item.stale < MAX_STALE else BROKEN
    conn.exchange = item
    conn.sent = conn.head_size = 0
    conn.state = SENDING
    item.sends += 1
    return send_rest(conn)


cdef int send_rest(connection_t *conn) noexcept nogil:
    """Send as much of the request as the socket takes; return the status."""
    cdef span_t rest = conn.exchange.request
    cdef int64_t sent
    take(&rest, conn.sent)
    while rest.left > 0:
        sent = fs_send(conn.fd, rest.at, rest.left)
        if sent < 0:
            return RUNNING if errno == EAGAIN else BROKEN
        take(&rest, <size_t> sent)
        conn.sent += sent
    conn.state = IN_HEAD
    return RUNNING


cdef int receive_head(connection_t *conn, uint8_t *scratch) noexcept nogil:
    """Receive once into `head`; check it when it is complete. Return the status."""
    cdef exchange_t *item = conn.exchange
    cdef fs_slice_t room
    cdef size_t before = conn.head_size
    cdef size_t end, rest
    cdef int64_t got
    room.to = conn.head + before
    room.size = (FIRST if before < FIRST else MAX_HEAD) - before
    got = fs_receive(conn.fd, &room, 1, scratch, SCRATCH, -1)
    if got <= 0:
        return RUNNING if got < 0 and errno == EAGAIN else BROKEN
    conn.head_size += got
    end = head_length(conn.head, conn.head_size, before)
    if end == 0:
        return UNEXPECTED if conn.head_size == MAX_HEAD else RUNNING
    if not is_expected(span_of(conn.head, end), &item.expected, &item.keeps):
        return UNEXPECTED
    rest = conn.head_size - end
    if rest > item.scatter.left:
        return UNEXPECTED
    scatter_copy(item.scatter, conn.head + end, rest)
    conn.state = IN_BODY
    conn.is_used = True
    return RUNNING if item.scatter.left > 0 else DONE


cdef int proceed(connection_t *conn, uint8_t *scratch) noexcept nogil:
    """Send and receive without waiting; return the status of the exchange."""
    cdef exchange_t *item = conn.exchange
    cdef int64_t got
    cdef int status
    if conn.state == SENDING:
        status = send_rest(conn)
        if status != RUNNING or conn.state == SENDING:
            return status
    if conn.state == IN_HEAD:
        status = receive_head(conn, scratch)
        if status != RUNNING or conn.state == IN_HEAD:
            return status
    got = scatter_receive(item.scatter, conn.fd, scratch, -1)
    if got <= 0:
        return RUNNING if got < 0 and errno == EAGAIN else BROKEN
    return RUNNING if item.scatter.left > 0 else DONE


def parse_head(bytes head, bytes content_range, bytes tag, uint64_t size):
    """Check headers, with their empty line."""
    cdef expected_t expected
    cdef bint keeps
    expected.range = span_of_bytes(content_range)
    expected.tag = span_of_bytes(tag)
    expected.size = size
    if not is_expected(span_of_bytes(head), &expected, &keeps):
        return None
    return bool(keeps)


cdef span_t span_of_bytes(bytes data):
    return span_of(
        <const uint8_t *> PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data)
    )


@cython.final
cdef class RangeExchange:
    """Request for a range, and the receipt of the expected response."""

    cdef exchange_t state
    cdef bytes request
    cdef bytes content_range
    cdef bytes tag
    cdef Scatter scatter
    cdef readonly object read

    def __cinit__(
        self, bytes request not None, bytes content_range not None,
        bytes tag not None, Scatter scatter not None, uint32_t server=0,
        uint64_t timeout=NEVER, read=None,
    ):
        self.request, self.content_range, self.tag = request, content_range, tag
        self.scatter = scatter
        self.read = read
        self.state.owner = <PyObject *> self
        self.state.request = span_of_bytes(request)
        self.state.expected.range = span_of_bytes(content_range)
        self.state.expected.tag = span_of_bytes(tag)
        self.state.expected.size = scatter.state.left
        self.state.scatter = &scatter.state
        self.state.server = server
        self.state.timeout = timeout
        self.state.status = RUNNING

    def __reduce__(self):
        raise TypeError("a RangeExchange does not pickle")

    @property
    def server(self):
        """Number of the server."""
        return self.state.server

    @property
    def status(self):
        """One of COMPLETE, ABSENT (no connection), EXPIRED, DROPPED, or another."""
        return self.state.status

    @property
    def nbytes(self):
        """Bytes of the body."""
        return self.state.expected.size

    @property
    def sends(self):
        """Number of requests that were sent."""
        return self.state.sends

    @property
    def begun(self):
        """Moment of the last attempt's begin, ns of `time.monotonic_ns`."""
        return self.state.begun

    @property
    def seconds(self):
        """Time from the last attempt's begin to the end."""
        return (self.state.ended - self.state.begun) / 1e9

    @property
    def keeps(self):
        """True if the connection can be used again."""
        return self.state.keeps and self.state.status == DONE

    def populate(self):
        """Allocate the pages of large destinations; the body may arrive meanwhile."""
        self.scatter.populate()

    def run(self, int fd, bint is_used, uint64_t until):
        """Exchange on an idle socket, in this thread."""
        cdef connection_t conn
        cdef int status
        cdef uint8_t *room = <uint8_t *> malloc(MAX_HEAD + SCRATCH)
        if room == NULL:
            raise MemoryError
        conn.fd, conn.is_used, conn.head = fd, is_used, room
        conn.exchange = NULL
        try:
            with nogil:
                status = begin(&conn, &self.state)
            if status == RUNNING:
                self.scatter.populate()
            while status == RUNNING:
                with nogil:
                    status = run_for(
                        &conn, room + MAX_HEAD, min(until, fs_exact_now() + MAX_WAIT)
                    )
                if status == RUNNING:
                    PyErr_CheckSignals()
                    if fs_exact_now() >= until:
                        status = TIMED_OUT
        finally:
            free(room)
        self.state.status = status
        self.state.ended = fs_exact_now()
        return status != STALE


cdef int run_for(connection_t *conn, uint8_t *scratch, uint64_t until) noexcept nogil:
    """Exchange until a moment; return the status."""
    cdef int status = RUNNING
    while status == RUNNING:
        if not fs_wait_for(conn.fd, conn.state == SENDING, ms_until(until)):
            return RUNNING
        status = proceed(conn, scratch)
        if fs_exact_now() >= until:
            return status
    return status


@cython.final
cdef class ExchangeLoop:
    """Event loop of exchanges, driven by one thread that calls `run`.

    Sockets belong to the caller: it closes those of `take_left`, or uses them again.
    """

    cdef fs_events_t events
    cdef fs_lock_t lock            # guards `incoming`, `arrived`, `open`, `waiters`
    cdef list_t incoming           # exchanges that were added
    cdef size_t *arrived           # slots of connections that were added
    cdef size_t arrived_count
    cdef size_t open               # slots that are not FREE
    cdef size_t room               # maximum of `open` at present
    cdef size_t most
    cdef uint8_t *taken            # whether a slot is not FREE
    cdef connection_t *connections  # from here on: only of the driving thread
    cdef size_t slots              # the highest slot that was ever used, plus 1
    cdef list_t queue
    cdef list_t finished
    cdef size_t active             # connections with an exchange
    cdef size_t connecting
    cdef size_t idle
    cdef size_t left
    cdef uint64_t soonest          # no deadline is before
    cdef uint64_t held_since       # when the first of `finished` ended
    cdef uint8_t *scratch
    cdef uint64_t waiters          # atomic: threads that wait for an exchange
    cdef uint64_t cancels          # atomic: whether an exchange was cancelled
    cdef uint64_t stops            # atomic
    cdef uint64_t rings            # atomic: whether the driving thread may sleep
    cdef unsigned generation
    cdef bint is_open

    def __cinit__(self, size_t most):
        cdef int code
        self.generation = fs_generation()
        self.most = self.room = max(min(most, <size_t> MAX_CONNECTIONS), <size_t> 1)
        self.soonest = NEVER
        self.connections = <connection_t *> calloc(self.most, sizeof(connection_t))
        self.taken = <uint8_t *> calloc(self.most, 1)
        self.arrived = <size_t *> calloc(self.most, sizeof(size_t))
        self.scratch = <uint8_t *> malloc(SCRATCH)
        if (
            self.connections == NULL or self.taken == NULL or self.arrived == NULL
            or self.scratch == NULL
        ):
            raise MemoryError
        code = fs_events_open(&self.events)
        if code != 0:
            raise OSError(code, os.strerror(code))
        self.is_open = True
        fs_lock_init(&self.lock)

    def __dealloc__(self):
        cdef size_t i
        cdef bint is_child = self.generation != fs_generation()
        if self.is_open:
            fs_events_close(&self.events, is_child)
        if is_child:
            return                 # lists may be half written, the lock held
        if self.is_open:
            fs_lock_free(&self.lock)
            release_all(&self.incoming)
            release_all(&self.queue)
            release_all(&self.finished)
            for i in range(self.slots):
                if self.connections[i].exchange != NULL:
                    Py_DECREF(<object> self.connections[i].exchange.owner)
        if self.connections != NULL:
            for i in range(self.most):
                free(self.connections[i].head)
        free(self.connections)
        free(self.taken)
        free(self.arrived)
        free(self.scratch)

    def __reduce__(self):
        raise TypeError("an ExchangeLoop does not pickle")

    def has_room(self):
        """Return whether another connection may be added."""
        cdef bint found
        fs_lock(&self.lock)
        found = self.open < self.room
        fs_unlock(&self.lock)
        return found

    def submit(
        self, RangeExchange item not None, claim, int fd=-1, bint is_connecting=False,
        uint64_t connect_timeout=0,
    ):
        """Add an exchange, and a connection to its server."""
        cdef bint added
        if self.generation != fs_generation() or not claim.acquire(False):
            return False, False
        Py_INCREF(item)
        fs_lock(&self.lock)
        append(&self.incoming, &item.state)
        added = self.place(fd, item.state.server, is_connecting, connect_timeout)
        fs_unlock(&self.lock)
        self.ring()
        return True, added

    def add(
        self, int fd, uint32_t server, bint is_connecting=False,
        uint64_t connect_timeout=0,
    ):
        """Add a connection for queued exchanges; return whether there was room."""
        cdef bint added
        fs_lock(&self.lock)
        added = self.place(fd, server, is_connecting, connect_timeout)
        fs_unlock(&self.lock)
        self.ring()
        return added

    cdef bint place(
        self, int fd, uint32_t server, bint is_connecting, uint64_t timeout
    ) noexcept nogil:
        """Put a connection into a free slot, under the lock."""
        cdef size_t slot
        cdef connection_t *conn
        if fd < 0 or self.open >= self.room:
            return False
        for slot in range(self.most):
            if not self.taken[slot]:
                break
        else:
            return False
        self.taken[slot] = True
        self.open += 1
        conn = &self.connections[slot]
        conn.fd, conn.server, conn.is_used = fd, server, not is_connecting
        conn.state = ARRIVING      # not IDLE: the driving thread would use it already
        conn.has_output = is_connecting
        conn.begun = fs_exact_now()
        conn.until = conn.begun + timeout
        self.arrived[self.arrived_count] = slot
        self.arrived_count += 1
        return True

    cdef void ring(self) noexcept nogil:
        if fs_atomic_load(&self.rings):
            fs_events_ring(&self.events)

    def begin_wait(self):
        """Announce that this thread waits for an exchange."""
        self.count_waiter(1)
        self.ring()

    def end_wait(self):
        """End the wait of `begin_wait`."""
        self.count_waiter(-1)

    cdef void count_waiter(self, int change) noexcept nogil:
        if self.generation == fs_generation():
            fs_lock(&self.lock)
            fs_atomic_store(&self.waiters, self.waiters + change)
            fs_unlock(&self.lock)

    def cancel(self, RangeExchange item not None):
        """End an exchange soon, with the status DROPPED."""
        fs_atomic_store(&item.state.cancelled, 1)
        if self.generation == fs_generation():
            fs_atomic_store(&self.cancels, 1)
            fs_events_ring(&self.events)

    def stop(self):
        """Make `run` return when idle, until `resume`."""
        fs_atomic_store(&self.stops, 1)
        fs_events_ring(&self.events)

    def resume(self):
        """Undo `stop`."""
        fs_atomic_store(&self.stops, 0)

    def run(self, double seconds):
        """Exchange without the GIL until Python has work."""
        cdef uint64_t until = fs_exact_now() + <uint64_t> (seconds * 1e9)
        cdef exchange_t *item
        with nogil:
            self.drive(until)
        found = []
        item = self.finished.first
        while item != NULL:
            found.append(<object> item.owner)
            item = item.next
        release_all(&self.finished)
        return found

    def is_quiet(self):
        """Return whether no exchange exists; a guess from other threads."""
        cdef bint found
        fs_lock(&self.lock)
        found = self.incoming.count == 0
        fs_unlock(&self.lock)
        return found and self.queue.count == 0 and self.active == 0

    def take_left(self):
        """Return (fd, is_idle) of removed connections; free their slots."""
        cdef size_t slot
        cdef connection_t *conn
        found = []
        if self.left == 0:
            return found
        for slot in range(self.slots):
            conn = &self.connections[slot]
            if conn.state == LEFT_IDLE or conn.state == LEFT_CLOSED:
                found.append((conn.fd, conn.state == LEFT_IDLE))
        self.left -= len(found)
        fs_lock(&self.lock)
        for slot in range(self.slots):
            conn = &self.connections[slot]
            if conn.state == LEFT_IDLE or conn.state == LEFT_CLOSED:
                conn.state = FREE
                self.taken[slot] = False
                self.open -= 1
        fs_unlock(&self.lock)
        return found

    def lacking(self):
        """Return queued exchanges that may get a new connection, one for each."""
        cdef exchange_t *item = self.queue.first
        cdef size_t passed = 0
        cdef size_t free_slots
        fs_lock(&self.lock)
        free_slots = self.room - self.open if self.open < self.room else 0
        fs_unlock(&self.lock)
        found = []
        while item != NULL and len(found) < free_slots:
            if passed >= self.connecting:
                found.append(<object> item.owner)
            passed += 1
            item = item.next
        return found

    def drain(self, uint32_t server):
        """End all queued exchanges with a server, with the status ABSENT."""
        self.drain_queue(server, fs_exact_now())

    cdef void drain_queue(self, uint32_t server, uint64_t begun) noexcept nogil:
        cdef exchange_t *item = self.queue.first
        cdef exchange_t *before = NULL
        cdef exchange_t *following
        while item != NULL:
            if item.server == server:
                following = unlink(&self.queue, before, item)
                item.begun = begun
                self.end(item, NO_CONNECTION)
            else:
                before = item
                following = item.next
            item = following

    cdef void end(self, exchange_t *item, int status) noexcept nogil:
        item.status = status
        item.ended = fs_exact_now()
        if self.finished.count == 0:
            self.held_since = item.ended
        append(&self.finished, item)

    cdef void drive(self, uint64_t until) noexcept nogil:
        """Wait for events and handle them, until `is_due`."""
        cdef uint32_t[FS_MOST_EVENTS] tags
        cdef uint64_t sleep_until
        cdef int i, count
        cdef bint sleeps = False
        while True:
            self.accept()
            if fs_atomic_load(&self.cancels):
                fs_atomic_store(&self.cancels, 0)
                self.drop_cancelled()
            if self.soonest <= fs_exact_now():
                self.expire()
            self.dispatch()
            # Twice: other threads ring only if `rings` is set.
            if self.is_due(until, not sleeps):
                break
            sleep_until = min(until, self.soonest)
            if self.finished.count > 0:
                sleep_until = min(sleep_until, self.held_since + HOLD)
            if sleeps:
                count = fs_events_wait(&self.events, tags, ms_until(sleep_until))
                fs_atomic_store(&self.rings, 0)
                sleeps = False
            else:
                count = fs_events_wait(&self.events, tags, 0)
                if count == 0:
                    fs_atomic_store(&self.rings, 1)
                    sleeps = True
            for i in range(count):
                if tags[i] != FS_BELL and tags[i] < self.slots:
                    self.handle(tags[i])
        fs_atomic_store(&self.rings, 0)

    cdef bint is_due(self, uint64_t until, bint is_busy) noexcept nogil:
        """Return whether Python has work. `is_busy`: events may wait."""
        if self.finished.count >= MANY:
            return True
        if self.active == 0 and self.queue.count == 0:
            self.leave_idle()
            if self.finished.count > 0 or self.left > 0:
                return True
            if fs_atomic_load(&self.stops) or fs_exact_now() >= until:
                return True
        elif self.is_lacking():
            return True
        if self.finished.count > 0:
            if not is_busy and fs_atomic_load(&self.waiters):
                return True
            return fs_exact_now() >= self.held_since + HOLD
        return False

    cdef bint is_lacking(self) noexcept nogil:
        """Return whether queued exchanges lack connections that Python can add."""
        cdef bint found
        if self.queue.count <= self.connecting:
            return False
        fs_lock(&self.lock)
        found = self.open < self.room or self.left > 0
        fs_unlock(&self.lock)
        return found

    cdef void accept(self) noexcept nogil:
        """Take over exchanges and connections that other threads added."""
        cdef exchange_t *item
        cdef connection_t *conn
        cdef size_t slot
        fs_lock(&self.lock)
        item = self.incoming.first
        if item != NULL:
            if self.queue.last == NULL:
                self.queue.first = item
            else:
                self.queue.last.next = item
            self.queue.last = self.incoming.last
            self.queue.count += self.incoming.count
            self.incoming.first = self.incoming.last = NULL
            self.incoming.count = 0
        while self.arrived_count > 0:
            self.arrived_count -= 1
            slot = self.arrived[self.arrived_count]
            self.slots = max(self.slots, slot + 1)
            conn = &self.connections[slot]
            conn.exchange = NULL
            conn.state = CONNECTING if conn.has_output else IDLE
            if conn.head == NULL:
                conn.head = <uint8_t *> malloc(MAX_HEAD)
            if conn.head == NULL or fs_events_change(
                &self.events, conn.fd, <uint32_t> slot, conn.has_output, True
            ) != 0:
                conn.state = LEFT_CLOSED
                self.left += 1
            elif conn.state == CONNECTING:
                self.connecting += 1
                self.soonest = min(self.soonest, conn.until)
            else:
                self.idle += 1
        fs_unlock(&self.lock)

    cdef void dispatch(self) noexcept nogil:
        """Give queued exchanges to idle connections."""
        cdef size_t slot
        if self.idle == 0 or self.queue.count == 0:
            return
        for slot in range(self.slots):
            if self.connections[slot].state == IDLE:
                self.feed(slot)
        if self.idle > 0 and self.queue.count > self.connecting and self.is_full():
            self.leave_idle()      # of other servers: their slots are needed

    cdef bint is_full(self) noexcept nogil:
        cdef bint found
        fs_lock(&self.lock)
        found = self.open >= self.room
        fs_unlock(&self.lock)
        return found

    cdef void feed(self, size_t slot) noexcept nogil:
        """Give an idle connection the next exchange with its server, if any."""
        cdef connection_t *conn = &self.connections[slot]
        cdef exchange_t *item = self.next_for(conn.server)
        cdef int status
        if item == NULL:
            return
        status = begin(conn, item)
        if status == STALE:
            prepend(&self.queue, item)
            self.leave(slot, LEFT_CLOSED)
            return
        self.idle -= 1
        self.active += 1
        conn.exchange = item
        self.soonest = min(self.soonest, conn.until)
        self.settle(slot, status)

    cdef exchange_t *next_for(self, uint32_t server) noexcept nogil:
        """Take the next exchange with a server out of the queue.

        If there can be no more connections, only the first of the queue is taken, so
        that no server has to wait for another.
        """
        cdef exchange_t *item = self.queue.first
        cdef exchange_t *before = NULL
        if item != NULL and item.server != server and self.is_full():
            return NULL
        while item != NULL and item.server != server:
            before = item
            item = item.next
        if item != NULL:
            unlink(&self.queue, before, item)
        return item

    cdef void settle(self, size_t slot, int status) noexcept nogil:
        """Continue or end the exchange of a connection."""
        cdef connection_t *conn = &self.connections[slot]
        cdef exchange_t *item = conn.exchange
        cdef bint output
        if status == RUNNING:
            output = conn.state == SENDING
            if output != conn.has_output:
                conn.has_output = output
                if fs_events_change(
                    &self.events, conn.fd, <uint32_t> slot, output, False
                ) != 0:
                    status = BROKEN
            if status == RUNNING:
                return
        conn.exchange = NULL
        self.active -= 1
        self.idle += 1
        conn.state = IDLE
        if status != DONE or not item.keeps:
            self.leave(slot, LEFT_CLOSED)
            self.end(item, status)
            return
        self.end(item, status)
        self.feed(slot)

    cdef void leave(self, size_t slot, int state) noexcept nogil:
        """Take an idle connection out of the loop."""
        fs_events_remove(&self.events, self.connections[slot].fd)
        self.connections[slot].state = state
        self.idle -= 1
        self.left += 1

    cdef void leave_idle(self) noexcept nogil:
        """Take all idle connections out of the loop."""
        cdef size_t slot
        if self.idle > 0:
            for slot in range(self.slots):
                if self.connections[slot].state == IDLE:
                    self.leave(slot, LEFT_IDLE)
        if self.active == 0 and self.connecting == 0:
            fs_lock(&self.lock)
            self.room = self.most
            fs_unlock(&self.lock)

    cdef void handle(self, size_t slot) noexcept nogil:
        """Handle an event of a connection."""
        cdef connection_t *conn = &self.connections[slot]
        if conn.state == CONNECTING:
            self.connecting -= 1
            self.idle += 1
            conn.state = IDLE
            conn.has_output = False
            if fs_connect_error(conn.fd) != 0 or fs_events_change(
                &self.events, conn.fd, <uint32_t> slot, False, False
            ) != 0:
                self.fail_connection(slot)
            else:
                self.feed(slot)
        elif conn.state == IDLE:
            self.leave(slot, LEFT_CLOSED)  # closed by the peer, or it spoke first
        elif conn.exchange != NULL:
            self.settle(slot, proceed(conn, self.scratch))

    cdef void fail_connection(self, size_t slot) noexcept nogil:
        """Drop a connection that was not made; without any other, give up its server.

        With others, no more are made until the loop is idle.
        """
        cdef size_t i
        cdef connection_t *conn = &self.connections[slot]
        cdef bint is_last = True
        self.leave(slot, LEFT_CLOSED)
        for i in range(self.slots):
            if (
                CONNECTING <= self.connections[i].state <= IN_BODY
                and self.connections[i].server == conn.server
            ):
                is_last = False
        if is_last:
            self.drain_queue(conn.server, conn.begun)
        else:
            fs_lock(&self.lock)
            self.room = max(self.open - 1, <size_t> 1)
            fs_unlock(&self.lock)

    cdef void expire(self) noexcept nogil:
        """End exchanges and connects after their deadline."""
        cdef uint64_t now = fs_exact_now()
        cdef size_t slot
        cdef connection_t *conn
        self.soonest = NEVER
        for slot in range(self.slots):
            conn = &self.connections[slot]
            if conn.state == CONNECTING and conn.until <= now:
                self.connecting -= 1
                self.idle += 1
                conn.state = IDLE
                self.fail_connection(slot)
            elif CONNECTING <= conn.state <= IN_BODY and conn.exchange != NULL:
                if conn.until <= now:
                    self.settle(slot, TIMED_OUT)
        for slot in range(self.slots):
            conn = &self.connections[slot]
            if conn.state == CONNECTING or (
                SENDING <= conn.state <= IN_BODY and conn.exchange != NULL
            ):
                self.soonest = min(self.soonest, conn.until)

    cdef void drop_cancelled(self) noexcept nogil:
        """End exchanges that were cancelled."""
        cdef size_t slot
        cdef exchange_t *item
        cdef exchange_t *before = NULL
        cdef exchange_t *following
        for slot in range(self.slots):
            item = self.connections[slot].exchange
            if (
                SENDING <= self.connections[slot].state <= IN_BODY and item != NULL
                and fs_atomic_load(&item.cancelled)
            ):
                self.settle(slot, CANCELLED)
        item = self.queue.first
        while item != NULL:
            if fs_atomic_load(&item.cancelled):
                following = unlink(&self.queue, before, item)
                self.end(item, CANCELLED)
            else:
                before = item
                following = item.next
            item = following


cdef void release_all(list_t *items) noexcept:
    """Empty a list, and release its exchanges."""
    cdef exchange_t *item = items.first
    cdef exchange_t *following
    items.first = items.last = NULL
    items.count = 0
    while item != NULL:
        following = item.next
        Py_DECREF(<object> item.owner)
        item = following
