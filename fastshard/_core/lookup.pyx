"""Many names looked up at once: the memory that each needs is asked for before."""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastshard._core.extents cimport ExtentTable, columns_t, name_at
from fastshard._core.hashing cimport (
    slot_entry, slots_find_hashed, slots_hash, slots_home, slots_likely, slots_t,
)
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.span cimport span_of, span_t

from array import array

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list items, Py_ssize_t i)  # borrowed

cdef enum:
    AT_ONCE = 128                  # names
    ROOM = 64 << 10                # bytes of them
    LINE = 64                      # bytes of memory that come together

cdef struct wanted_t:
    span_t name
    uint64_t hashed
    size_t place                   # in the list


cdef inline void expect_name(const uint8_t *at, const wanted_t *wanted) noexcept nogil:
    """Ask for the name that is compared with one that is wanted."""
    fs_prefetch_line(at)
    fs_prefetch_line(at + wanted.name.left - 1)


cdef void find_some(
    const slots_t *slots, const columns_t *columns, wanted_t *wanted, size_t count,
    int64_t *found,
) noexcept nogil:
    """Look up names side by side: each step waits for memory of the one before."""
    cdef size_t k
    cdef uint32_t slot
    cdef uint32_t filling = 0
    cdef uint64_t end
    cdef uint32_t[<int> AT_ONCE] entries
    for k in range(count):
        wanted[k].hashed = slots_hash(wanted[k].name)
        fs_prefetch_line(slots_home(slots, wanted[k].hashed))
    for k in range(count):
        slot = slots_likely(slots, wanted[k].hashed)
        entries[k] = 0 if slot == 0 else slot_entry(slots, slot)
        if columns.name_width == 0:
            fs_prefetch_line(columns.name_ends + entries[k])
        else:
            expect_name(columns.names + entries[k] * columns.name_width, &wanted[k])
    if columns.name_width == 0:
        for k in range(count):
            end = fs_load(columns.name_ends + entries[k])
            end = min(end, <uint64_t> columns.names_size)
            end -= min(end, <uint64_t> wanted[k].name.left)
            expect_name(columns.names + end, &wanted[k])
    for k in range(count):
        slot = slots_find_hashed(
            slots, wanted[k].hashed, wanted[k].name, name_at, columns, &filling
        )[0]
        found[wanted[k].place] = (
            -1 if slot == 0 else <int64_t> slot_entry(slots, slot)
        )


cdef void expect_texts(list texts, size_t start) noexcept:
    """Ask for the next texts of a list, in a loop of its own: for many at once."""
    cdef size_t k
    cdef size_t end = min(start + AT_ONCE, <size_t> len(texts))
    for k in range(start, end):
        fs_prefetch_line(PyList_GET_ITEM(texts, k))
        fs_prefetch_line(<char *> PyList_GET_ITEM(texts, k) + LINE)


def find_all(ExtentTable names not None, list wanted not None, str suffix not None):
    """Return the positions of names, -1 where there is none: an array of int64.

    Parameters
    ----------
    names : ExtentTable
        All of UTF-8: half a surrogate pair stands for no byte of them.
    wanted : list of str
        Names without their end.
    suffix : str
        That end, in ASCII.

    Raises
    ------
    TypeError
        One is no str.
    """
    cdef const char *text = NULL
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t end_size = len(suffix)
    cdef bytes end = suffix.encode("ascii")
    cdef const char *end_at = end
    cdef size_t used = 0
    cdef size_t count = 0
    cdef size_t place
    cdef wanted_t[<int> AT_ONCE] some
    cdef object positions = array("q", bytes(8 * len(wanted)))
    cdef int64_t[::1] found = positions
    cdef uint8_t *room
    if not wanted or names.columns.count == 0:
        return array("q", [-1]) * len(wanted)
    names.find(suffix)             # builds the hash
    room = <uint8_t *> malloc(ROOM)
    if room == NULL:
        raise MemoryError
    try:
        for place in range(<size_t> len(wanted)):
            if place % AT_ONCE == 0:
                expect_texts(wanted, place)
            name = wanted[place]
            if not isinstance(name, str):
                raise TypeError(f"names are str, not {type(name).__name__}")
            try:
                text = PyUnicode_AsUTF8AndSize(name, &size)
            except UnicodeEncodeError:
                found[place] = -1
                continue
            if <size_t> (size + end_size) > ROOM // 2:
                found[place] = names.find(name + suffix)
                continue
            if count == AT_ONCE or used + size + end_size > ROOM:
                find_some(&names.by_name, &names.columns, some, count, &found[0])
                count = used = 0
            memcpy(room + used, text, size)
            memcpy(room + used + size, end_at, end_size)
            some[count].name = span_of(room + used, size + end_size)
            some[count].place = place
            used += size + end_size
            count += 1
        find_some(&names.by_name, &names.columns, some, count, &found[0])
    finally:
        free(room)
    return positions
