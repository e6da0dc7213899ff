"""Members of a tar that are gathered in memory until they are written."""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from numpy import ndarray

cdef enum:
    BLOCK = 512                    # bytes
    NAME_WIDTH = 100
    SIZE_AT = 124
    SIZE_DIGITS = 11
    CHECKSUM_AT = 148
    CHECKSUM_WIDTH = 8
    KEPT_ROOM = 4 << 20            # bytes; what a large member took is given back

cdef uint64_t MAX_OCTAL = 1 << 33  # bytes: what no longer fits eleven octal digits
cdef uint64_t MAX_FILE = 1 << 62   # bytes; beyond it offsets are no int64 in SQLite


cdef inline size_t padding_of(size_t size) noexcept nogil:
    return (BLOCK - size % BLOCK) % BLOCK


cdef inline void put_octal(uint8_t *to, int digits, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(digits - 1, -1, -1):
        to[i] = c'0' + (value & 7)
        value >>= 3


cdef inline bint fits_ustar(const uint8_t *name, size_t size) noexcept nogil:
    """Say whether a name is ASCII and short, so that it needs no pax header."""
    cdef size_t i
    cdef uint8_t bits = 0
    if size > NAME_WIDTH:
        return False
    for i in range(size):
        bits |= name[i]
    return bits < 0x80


@cython.final
@cython.no_gc
cdef class MemberBuffer:
    """The end of a tar that is not written yet: headers, arrays and padding.

    It exports its bytes, read-only, for writing. While an export lives it
    changes nothing.

    Parameters
    ----------
    head : callable
        Makes the header of a member from its name and size, both as
        `fastshard.formats.tar_writer.Headers.member` takes them.
    encode : callable
        Takes what is no plain array: returns its ``.npy`` header and its data,
        both bytes-like. Where the data is the array itself, the header serves
        for every array of the same dtype and shape that is C-contiguous.

    Attributes
    ----------
    start : int
        Where in the file the first byte of the buffer belongs.
    end : int
        Where the next member will begin.
    number : int
        The shard that it is the end of; for who uses it.
    left : int
        Members for which that has room. `append_all` counts them down.
    """

    cdef object head, encode
    cdef object dtype, shape       # that `header` is for, or None
    cdef bytes header
    cdef uint8_t[BLOCK] block      # a member's header without its name and size
    cdef uint64_t block_sum        # of its bytes, the checksum's own as spaces
    cdef readonly uint64_t start
    cdef public long long number
    cdef public long long left
    cdef uint8_t *at
    cdef size_t size, room         # bytes used, bytes there are
    cdef size_t last               # where in the buffer the last member begins
    cdef Py_ssize_t exports

    def __cinit__(self, head not None, encode not None):
        cdef bytes block = head(b"", 0)
        cdef int i
        if len(block) != BLOCK:
            raise ValueError("the header of an empty name is not one block")
        self.head = head
        self.encode = encode
        self.number = -1
        memcpy(self.block, PyBytes_AS_STRING(block), BLOCK)
        memset(self.block + CHECKSUM_AT, c' ', CHECKSUM_WIDTH)
        for i in range(BLOCK):
            self.block_sum += self.block[i]

    def __dealloc__(self):
        free(self.at)

    @property
    def end(self):
        return self.start + self.size

    def __len__(self):
        return self.size

    def append(self, bytes name not None, array):
        """Add a member that holds what `np.save` would write.

        Parameters
        ----------
        name : bytes
            UTF-8, no NUL.
        array : object
            An array, or what `encode` takes.

        Returns
        -------
        int
            Where in the file its data will begin.

        Raises
        ------
        MemoryError
            Nothing is added.
        Exception
            What `encode` raises. Nothing is added.
        """
        cdef Py_buffer data
        self.check()
        header = self.header
        if (
            type(array) is not ndarray
            or array.dtype is not self.dtype
            or array.shape != self.shape
        ):
            return self.append_other(name, array)
        try:
            PyObject_GetBuffer(array, &data, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            return self.append_other(name, array)  # strided
        try:
            return self.put(name, header, &data)
        finally:
            PyBuffer_Release(&data)

    cdef object append_other(self, bytes name, object array):
        cdef Py_buffer data
        cdef bytes header
        header, payload = self.encode(array)
        PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE)
        try:
            offset = self.put(name, header, &data)
        finally:
            PyBuffer_Release(&data)
        # A dtype of several parts can change: it is not remembered.
        if payload is array and type(array) is ndarray and array.dtype.names is None:
            self.dtype, self.shape, self.header = array.dtype, array.shape, header
        return offset

    def append_bytes(self, bytes name not None, data not None):
        """Add a member that holds these bytes, and return where they will begin."""
        cdef Py_buffer view
        self.check()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.put(name, b"", &view)
        finally:
            PyBuffer_Release(&view)

    cdef object put(self, bytes name, bytes header, Py_buffer *data):
        """Add a member whose data is `header` and then `data`."""
        cdef uint64_t size = PyBytes_GET_SIZE(header) + <uint64_t> data.len
        cdef size_t before = BLOCK
        cdef size_t padding = padding_of(size)
        cdef bytes slow = None
        cdef uint8_t *to
        if (
            not fits_ustar(<uint8_t *> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            or size >= MAX_OCTAL
        ):
            slow = self.head(name, size)
            before = PyBytes_GET_SIZE(slow)
        self.reserve(before + size + padding)
        to = self.at + self.size
        if slow is None:
            self.put_block(to, name, size)
        else:
            memcpy(to, PyBytes_AS_STRING(slow), before)
        to += before
        memcpy(to, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        to += PyBytes_GET_SIZE(header)
        if data.len > 0:
            memcpy(to, data.buf, data.len)
        memset(to + data.len, 0, padding)
        self.last = self.size
        self.size += before + size + padding
        return self.start + self.last + before

    cdef void put_block(self, uint8_t *to, bytes name, uint64_t size) noexcept:
        cdef const uint8_t *letters = <uint8_t *> PyBytes_AS_STRING(name)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(name)
        cdef uint64_t total = self.block_sum
        cdef Py_ssize_t i
        memcpy(to, self.block, BLOCK)
        memcpy(to, letters, n)
        put_octal(to + SIZE_AT, SIZE_DIGITS, size)
        for i in range(n):
            total += letters[i]
        for i in range(SIZE_DIGITS):
            total += to[SIZE_AT + i] - c'0'
        put_octal(to + CHECKSUM_AT, 6, total)
        to[CHECKSUM_AT + 6] = 0

    cdef int reserve(self, uint64_t more) except -1:
        """Make room for `more` bytes behind those that are there."""
        cdef size_t room
        cdef void *grown
        if more > MAX_FILE - self.start - self.size:
            raise OverflowError("a shard of more than 2**62 bytes")
        if more <= self.room - self.size:
            return 0
        room = self.size + more
        room += room // 4
        grown = realloc(self.at, room)
        if grown is NULL:
            raise MemoryError(f"no memory for {room:,} bytes of a shard")
        self.at = <uint8_t *> grown
        self.room = room
        return 0

    def drop_last(self):
        """Take back what `append_all` added last. Not twice in a row."""
        self.check()
        self.size = self.last
        self.left += 1

    def begin(self, uint64_t start):
        """Drop all that is there, and go on at a place in a file."""
        cdef void *smaller
        self.check()
        if start > MAX_FILE:
            raise OverflowError(f"no place in a file: {start:,}")
        self.start = start
        self.size = self.last = 0
        if self.room > KEPT_ROOM:
            smaller = realloc(self.at, KEPT_ROOM)
            if smaller is not NULL:
                self.at = <uint8_t *> smaller
                self.room = KEPT_ROOM

    cdef int check(self) except -1:
        if self.exports:
            raise BufferError("the members are being written")
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __reduce__(self):
        raise TypeError("members that are not written yet do not pickle")


def append_all(dict buffers not None, arrays not None, bytes name not None, make_room):
    """Add a member to each of some buffers, or to none of them.

    Parameters
    ----------
    buffers : dict of str to MemberBuffer
    arrays : Mapping of str to object
        Which buffers, and what to add to each.
    name : bytes
        The name of all these members.
    make_room : callable
        Called with the key of a buffer that is not there, or has nothing left. It
        raises, or puts one there that has.

    Returns
    -------
    row : list of int
        Of each member, in turn, where its data begins and the buffer's number.
    largest : int
        Bytes in the fullest of these buffers.

    Raises
    ------
    Exception
        What `encode` or `make_room` raise; nothing is added.
    """
    cdef MemberBuffer buffer
    cdef list row = []
    cdef list done = []
    cdef size_t largest = 0
    try:
        for key, array in arrays.items():
            found = buffers.get(key)
            if found is None or (<MemberBuffer?> found).left <= 0:
                make_room(key)
                found = buffers[key]
            buffer = <MemberBuffer?> found
            try:
                row.append(buffer.append(name, array))
            except ValueError as error:
                raise ValueError(f"field {key!r}: {error}") from error
            row.append(buffer.number)
            done.append(buffer)
            buffer.left -= 1
            if buffer.size > largest:
                largest = buffer.size
    except BaseException:
        for found in done:
            (<MemberBuffer> found).drop_last()
        raise
    return row, largest


def keep_for_ever(thing not None):
    """Keep an object until the process ends, and then let nothing finish it."""
    Py_INCREF(thing)
