"""Parser of ``index.json``: text to a compact table of shards, without the GIL.

    {"version": 2, "shards": [{"format": "mds", "samples": 5, "raw_data": {...}, ...}]}

Samples, names, sizes and hashes of files are stored per shard. The
rest of an object is a schema: its values are kept as text, once for equal ones. Keys
come in any order; the values of unknown keys are validated as JSON and skipped.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from fastshard._core.buffers cimport int64s_of
from fastshard._core.parse.json cimport (
    JSON_END, JSON_NO_MEMORY, JSON_NO_OBJECT, JSON_OK, JSON_STATUSES, JSON_TRAILING,
    json_at, json_fault, json_fault_at, json_item, json_key, json_next, json_open,
    json_skip, json_space, json_string, json_string_t, json_t, json_unescape,
    json_unsigned,
)
from fastshard._core.span cimport is_equal, span_of, span_t, take, take_until
from fastshard._core.table.extents cimport (
    columns_add, columns_free, columns_t, name_at, resize, resolve_position, slots_find,
    slots_free, slots_init, slots_t,
)
from fastshard._core.table.names cimport decode_text

from array import array

from fastshard._core.parse.json import FAULTS as _JSON_FAULTS
from fastshard.errors import FormatError

cdef enum:
    MAX_KEY = 8 * 16               # bytes of the longest known key, fully escaped
    MAX_SCHEMAS = 1 << 14
    LEAST_SHARD = 32               # bytes of text, fewer than any shard has
    MAX_SAMPLES = 0xfffffffe       # of a shard, which counts them in 32 bits
    MAX_TEXT = 1 << 29             # bytes of an index

cdef enum file_key_t:              # the files of a shard
    RAW_DATA
    ZIP_DATA
    RAW_META
    ZIP_META
    FILES

cdef enum shard_key_t:             # keys of a shard's object
    KEY_SAMPLES = FILES
    KEY_SCHEMA                     # the first key of a schema
    KEYS = KEY_SCHEMA + 11
    KEY_OTHER = -1

cdef enum:
    SCHEMA_KEYS = KEYS - KEY_SCHEMA

# In the order of their numbers.
KEY_NAMES = (
    "raw_data", "zip_data", "raw_meta", "zip_meta", "samples", "version", "format",
    "compression", "hashes", "size_limit", "column_names", "column_encodings",
    "column_sizes", "columns", "newline", "separator",
)

cdef enum file_info_key_t:
    KEY_BASENAME = 1
    KEY_BYTES = 2
    KEY_HASHES = 4
    ALL_OF_FILE = 7

cdef enum index_status_t:
    INDEX_TWICE = JSON_STATUSES
    INDEX_NO_SHARDS
    INDEX_BAD_SHARDS
    INDEX_BAD_VERSION
    INDEX_NO_SAMPLES
    INDEX_MANY_SAMPLES
    INDEX_NO_RAW_DATA
    INDEX_FEW_BYTES
    INDEX_SCHEMAS
    INDEX_NO_BASENAME
    INDEX_NO_BYTES
    INDEX_NO_HASHES
    INDEX_EMPTY_NAME
    INDEX_NUL                      # from here on: the file's name is known
    INDEX_ABSOLUTE
    INDEX_OUTSIDE
    INDEX_FOLDER
    INDEX_SAME_FILE

cdef struct file_t:                # a file of a shard
    uint64_t nbytes
    uint32_t name_size             # bytes; 0: the shard has no such file
    uint32_t hashes_size           # bytes of the JSON text behind the name

cdef struct shard_t:
    uint64_t at                    # offset of its first name in `texts`
    uint32_t where                 # byte of its object in the index
    uint32_t samples
    uint32_t schema
    file_t[4] files

cdef struct index_t:
    json_t json
    shard_t *shards
    size_t count
    size_t capacity
    uint8_t *texts                 # name and hashes of each file
    size_t texts_size              # bytes
    size_t texts_capacity
    columns_t schemas              # as names: texts of their values
    slots_t by_text                # hash table of `schemas`
    span_t[11] last                # values of the last shard's schema
    uint32_t last_schema
    uint8_t *scratch               # text of a schema
    size_t scratch_capacity
    span_t name                    # of the last file
    bint has_backslashes           # ``\\`` separates folders
    bint has_shards
    bint has_odd_names             # names with "." or empty parts, not compared here
    bint has_version

FAULTS = _JSON_FAULTS | {
    INDEX_TWICE: "duplicate key",
    INDEX_NO_SHARDS: "no key 'shards': not an index of a streaming dataset",
    INDEX_BAD_SHARDS: "'shards' must be an array",
    INDEX_BAD_VERSION: "expected \"version\": 2",
    INDEX_NO_SAMPLES: "shard has no key 'samples'",
    INDEX_MANY_SAMPLES: f"shard has more than {<uint64_t> MAX_SAMPLES:,} samples",
    INDEX_NO_RAW_DATA: "shard has no key 'raw_data'",
    INDEX_FEW_BYTES: "shard has more samples than bytes",
    INDEX_SCHEMAS: f"shards of more than {MAX_SCHEMAS:,} kinds",
    INDEX_NO_BASENAME: "file has no key 'basename'",
    INDEX_NO_BYTES: "file has no key 'bytes'",
    INDEX_NO_HASHES: "file has no key 'hashes'",
    INDEX_EMPTY_NAME: "empty basename",
    INDEX_NUL: "basename contains a NUL",
    INDEX_ABSOLUTE: "absolute basename",
    INDEX_OUTSIDE: "basename with '..'",
    INDEX_FOLDER: "basename of a folder",
    INDEX_SAME_FILE: "two shards name one file",
}


cdef inline bint same(span_t text, const char *word, size_t size) noexcept nogil:
    return text.left == size and memcmp(text.at, word, size) == 0


cdef inline bint is_two(span_t text) noexcept nogil:
    """Return whether a JSON number is the version that is read."""
    return same(text, b"2", 1) or same(text, b"2.0", 3)


cdef int skip_value(json_t *json, span_t *text) noexcept nogil:
    """Step over a value that holds no name of a file; `text` becomes its text."""
    cdef int status
    text[0] = json.rest
    json.any_surrogate = True
    status = json_skip(json)
    json.any_surrogate = False
    text.left -= json.rest.left
    return status


cdef int shard_key(span_t key) noexcept nogil:
    """Return the number of a key of a shard's object, or KEY_OTHER."""
    if same(key, b"raw_data", 8):
        return RAW_DATA
    if same(key, b"zip_data", 8):
        return ZIP_DATA
    if same(key, b"raw_meta", 8):
        return RAW_META
    if same(key, b"zip_meta", 8):
        return ZIP_META
    if same(key, b"samples", 7):
        return KEY_SAMPLES
    if same(key, b"version", 7):
        return KEY_SCHEMA
    if same(key, b"format", 6):
        return KEY_SCHEMA + 1
    if same(key, b"compression", 11):
        return KEY_SCHEMA + 2
    if same(key, b"hashes", 6):
        return KEY_SCHEMA + 3
    if same(key, b"size_limit", 10):
        return KEY_SCHEMA + 4
    if same(key, b"column_names", 12):
        return KEY_SCHEMA + 5
    if same(key, b"column_encodings", 16):
        return KEY_SCHEMA + 6
    if same(key, b"column_sizes", 12):
        return KEY_SCHEMA + 7
    if same(key, b"columns", 7):
        return KEY_SCHEMA + 8
    if same(key, b"newline", 7):
        return KEY_SCHEMA + 9
    if same(key, b"separator", 9):
        return KEY_SCHEMA + 10
    return KEY_OTHER


cdef int file_info_key(span_t key) noexcept nogil:
    if same(key, b"basename", 8):
        return KEY_BASENAME
    if same(key, b"bytes", 5):
        return KEY_BYTES
    if same(key, b"hashes", 6):
        return KEY_HASHES
    return 0


cdef span_t plain_key(const json_string_t *key, uint8_t *plain) noexcept nogil:
    """Return a key without escapes; empty if it is longer than any known one."""
    if not key.escaped:
        return key.raw
    if key.raw.left > MAX_KEY:
        return span_of(plain, 0)
    return span_of(plain, json_unescape(key.raw, plain))


cdef int check_name(index_t *index) noexcept nogil:
    """Check that the last name is a path below the directory."""
    cdef span_t rest = index.name
    cdef span_t part
    cdef size_t i
    if rest.left == 0:
        return INDEX_EMPTY_NAME
    if memchr(rest.at, 0, rest.left) != NULL:
        return INDEX_NUL
    if rest.at[0] == c'/':
        return INDEX_ABSOLUTE
    if index.has_backslashes:
        for i in range(rest.left):
            if rest.at[i] == c'\\' or rest.at[i] == c':':
                return INDEX_ABSOLUTE
    if rest.at[rest.left - 1] == c'/':
        return INDEX_FOLDER
    while rest.left > 0:
        if not take_until(&rest, c'/', &part):
            part = rest
            rest.left = 0
        if same(part, b"..", 2):
            return INDEX_OUTSIDE
        if part.left == 0 or same(part, b".", 1):
            index.has_odd_names = True
            if part.left == 1 and rest.left == 0:
                return INDEX_FOLDER
    return JSON_OK


cdef bint add_text(index_t *index, span_t text) noexcept nogil:
    """Append to the texts; False: out of memory."""
    cdef size_t wanted = index.texts_size + text.left
    if wanted > index.texts_capacity:
        wanted = 2 * wanted + 1024
        if not resize(<void **> &index.texts, wanted, 1):
            return False
        index.texts_capacity = wanted
    if text.left > 0:
        memcpy(index.texts + index.texts_size, text.at, text.left)
    index.texts_size += text.left
    return True


cdef int read_hashes(json_t *json, span_t *text) noexcept nogil:
    """Read an object of strings, or null; `text` becomes its text."""
    cdef json_string_t word
    cdef bint first = True
    cdef int status
    if json_next(json) == c'n':
        text[0] = span_of(b"{}", 2)
        return json_skip(json)
    text[0] = json.rest
    if json_next(json) != c'{':
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    while status == JSON_OK:
        status = json_key(json, first, &word)
        first = False
        if status == JSON_OK:
            status = json_string(json, &word)
    text.left -= json.rest.left
    return JSON_OK if status == JSON_END else status


cdef int add_file(
    index_t *index, json_string_t *name, span_t hashes, size_t at, file_t *file
) noexcept nogil:
    """Store the name and the hashes of a file whose object begins at `at`."""
    cdef size_t start = index.texts_size
    cdef int status
    if not add_text(index, name.raw):
        return JSON_NO_MEMORY
    if name.escaped:               # never longer than the text
        index.texts_size = start + json_unescape(name.raw, index.texts + start)
    index.name = span_of(index.texts + start, index.texts_size - start)
    status = check_name(index)
    if status != JSON_OK:
        return json_fault_at(&index.json, status, at)
    file.name_size = <uint32_t> index.name.left
    file.hashes_size = <uint32_t> hashes.left
    return JSON_OK if add_text(index, hashes) else JSON_NO_MEMORY


cdef int read_file(index_t *index, bint optional, file_t *file) noexcept nogil:
    """Read the object of a file, or null if it is optional."""
    cdef json_t *json = &index.json
    cdef size_t at = json_at(json)
    cdef uint8_t[MAX_KEY] plain
    cdef json_string_t key, name
    cdef span_t hashes = json.rest
    cdef bint first = True
    cdef int seen = 0
    cdef int kind, status
    file.name_size = 0
    if json_next(json) != c'{':
        if optional and json_next(json) == c'n':
            return json_skip(json)
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    while status == JSON_OK:
        status = json_key(json, first, &key)
        first = False
        if status != JSON_OK:
            break
        kind = file_info_key(plain_key(&key, plain))
        if seen & kind:
            return json_fault(json, INDEX_TWICE)
        seen |= kind
        if kind == KEY_BASENAME:
            status = json_string(json, &name)
        elif kind == KEY_BYTES:
            status = json_unsigned(json, &file.nbytes)
        elif kind == KEY_HASHES:
            status = read_hashes(json, &hashes)
        else:
            status = json_skip(json)
    if status != JSON_END:
        return status
    if seen != ALL_OF_FILE:
        status = INDEX_NO_HASHES
        if not seen & KEY_BASENAME:
            status = INDEX_NO_BASENAME
        elif not seen & KEY_BYTES:
            status = INDEX_NO_BYTES
        return json_fault_at(json, status, at)
    return add_file(index, &name, hashes, at, file)


cdef int find_schema(index_t *index, const span_t *values, size_t at) noexcept nogil:
    """Set `last_schema` to the schema of these values; add it if it is new."""
    cdef size_t size = 0
    cdef uint32_t filling = 0
    cdef uint32_t length
    cdef uint32_t *slot
    cdef span_t text
    cdef size_t k
    for k in range(<size_t> SCHEMA_KEYS):
        size += sizeof(length) + values[k].left
    if size > index.scratch_capacity:
        if not resize(<void **> &index.scratch, 2 * size, 1):
            return JSON_NO_MEMORY
        index.scratch_capacity = 2 * size
    size = 0
    for k in range(<size_t> SCHEMA_KEYS):
        length = <uint32_t> values[k].left
        memcpy(index.scratch + size, &length, sizeof(length))
        size += sizeof(length)
        if length > 0:
            memcpy(index.scratch + size, values[k].at, length)
        size += length
        index.last[k] = values[k]
    text = span_of(index.scratch, size)
    slot = slots_find(&index.by_text, text, name_at, &index.schemas, &filling)
    if slot[0] != 0:
        index.last_schema = (slot[0] & index.by_text.entry_mask) - 1
        return JSON_OK
    if index.schemas.count == MAX_SCHEMAS:
        return json_fault_at(&index.json, INDEX_SCHEMAS, at)
    index.last_schema = <uint32_t> index.schemas.count
    slot[0] = filling | (index.last_schema + 1)
    # The offset of a "name": the byte of the schema's first object.
    return JSON_OK if columns_add(&index.schemas, at, 0, text) else JSON_NO_MEMORY


cdef bint has_last_schema(const index_t *index, const span_t *values) noexcept nogil:
    cdef size_t k
    if index.schemas.count == 0:
        return False
    for k in range(<size_t> SCHEMA_KEYS):
        if not is_equal(values[k], index.last[k]):
            return False
    return True


cdef int read_shard_value(
    index_t *index, int kind, shard_t *shard, span_t *values
) noexcept nogil:
    """Read the value of a key of a shard's object."""
    cdef json_t *json = &index.json
    cdef span_t text
    cdef uint64_t number = 0
    cdef int status
    if kind == KEY_SAMPLES:
        status = json_unsigned(json, &number)
        if status == JSON_OK and number > <uint64_t> MAX_SAMPLES:
            return json_fault(json, INDEX_MANY_SAMPLES)
        shard.samples = <uint32_t> number
        return status
    status = skip_value(json, &text)
    if kind != KEY_OTHER:
        values[kind - KEY_SCHEMA] = text
    return status


cdef int read_shard(index_t *index, shard_t *shard) noexcept nogil:
    """Read the object of a shard.

    Names are stored in the order of `file_key_t`: the objects of files are read last.
    """
    cdef json_t *json = &index.json
    cdef json_t file_json
    cdef uint8_t[MAX_KEY] plain
    cdef json_string_t key
    cdef span_t[11] values
    cdef json_t[4] files           # where the files' objects begin
    cdef bint first = True
    cdef uint32_t seen = 0
    cdef int kind, status
    cdef size_t at = json_at(json)
    cdef size_t k
    for k in range(<size_t> SCHEMA_KEYS):
        values[k] = span_of(json.rest.at, 0)
    if json_next(json) != c'{':
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    while status == JSON_OK:
        status = json_key(json, first, &key)
        first = False
        if status != JSON_OK:
            break
        kind = shard_key(plain_key(&key, plain))
        if kind != KEY_OTHER:
            if seen & (<uint32_t> 1 << kind):
                return json_fault(json, INDEX_TWICE)
            seen |= <uint32_t> 1 << kind
        if 0 <= kind < FILES:
            files[kind] = json[0]
            status = json_skip(json)
        else:
            status = read_shard_value(index, kind, shard, values)
    if status != JSON_END:
        return status
    if not seen & (1 << KEY_SAMPLES):
        return json_fault_at(json, INDEX_NO_SAMPLES, at)
    if not seen & (1 << RAW_DATA):
        return json_fault_at(json, INDEX_NO_RAW_DATA, at)
    if not is_two(values[0]):
        return json_fault_at(json, INDEX_BAD_VERSION, at)
    shard.where = <uint32_t> at
    shard.at = index.texts_size
    file_json = json[0]
    for k in range(<size_t> FILES):
        shard.files[k].name_size = 0
        if not seen & (<uint32_t> 1 << k):
            continue
        json[0] = files[k]
        status = read_file(index, k == ZIP_DATA or k == ZIP_META, &shard.files[k])
        if status != JSON_OK:
            return status
    json[0] = file_json
    if shard.samples > shard.files[<int> RAW_DATA].nbytes:  # each has one at least
        return json_fault_at(json, INDEX_FEW_BYTES, at)
    if not has_last_schema(index, values):
        status = find_schema(index, values, at)
    else:
        status = JSON_OK
    shard.schema = index.last_schema
    return status


cdef int read_shards(index_t *index) noexcept nogil:
    """Read the array of shards."""
    cdef json_t *json = &index.json
    cdef bint first = True
    cdef size_t capacity
    cdef int status
    if json_next(json) != c'[':
        return json_fault(json, INDEX_BAD_SHARDS)
    status = json_open(json)
    while status == JSON_OK:
        status = json_item(json, first, c']')
        first = False
        if status != JSON_OK:
            break
        if index.count == index.capacity:
            capacity = 2 * index.capacity + 64
            if not resize(<void **> &index.shards, capacity, sizeof(shard_t)):
                return JSON_NO_MEMORY
            index.capacity = capacity
        status = read_shard(index, &index.shards[index.count])
        if status == JSON_OK:
            index.count += 1
    return JSON_OK if status == JSON_END else status


cdef span_t file_name_at(const void *context, uint32_t entry) noexcept nogil:
    """Return the name of a file: the shard's number times FILES plus the file's."""
    cdef const index_t *index = <const index_t *> context
    cdef const shard_t *shard = &index.shards[entry // FILES]
    cdef uint64_t at = shard.at
    cdef uint32_t k
    for k in range(entry % FILES):
        if shard.files[k].name_size > 0:
            at += shard.files[k].name_size + shard.files[k].hashes_size
    return span_of(index.texts + at, shard.files[entry % FILES].name_size)


cdef int check_names(index_t *index) noexcept nogil:
    """Check that no two files have one name."""
    cdef slots_t seen
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    cdef uint32_t entry
    cdef int status = JSON_OK
    if not slots_init(&seen, index.count * <size_t> FILES):
        return JSON_NO_MEMORY
    for entry in range(<uint32_t> index.count * <uint32_t> FILES):
        index.name = file_name_at(index, entry)
        if index.name.left == 0:
            continue
        slot = slots_find(&seen, index.name, file_name_at, index, &filling)
        if slot[0] != 0:
            status = json_fault_at(
                &index.json, INDEX_SAME_FILE, index.shards[entry // FILES].where
            )
            break
        slot[0] = filling | (entry + 1)
    slots_free(&seen)
    return status


cdef int read_top_value(index_t *index, const json_string_t *key) noexcept nogil:
    """Read the value of a key of the top level."""
    cdef json_t *json = &index.json
    cdef uint8_t[MAX_KEY] plain
    cdef span_t name = plain_key(key, plain)
    cdef span_t text
    cdef size_t at = json_at(json)
    if same(name, b"shards", 6):
        if index.has_shards:
            return json_fault(json, INDEX_TWICE)
        index.has_shards = True
        return read_shards(index)
    if same(name, b"version", 7):
        if index.has_version:
            return json_fault(json, INDEX_TWICE)
        index.has_version = True
        if skip_value(json, &text) != JSON_OK or not is_two(text):
            return json_fault_at(json, INDEX_BAD_VERSION, at)
        return JSON_OK
    return skip_value(json, &text)


cdef int read_index(index_t *index) noexcept nogil:
    """Read the whole text; return a json_status_t or index_status_t."""
    cdef json_t *json = &index.json
    cdef json_string_t key
    cdef bint first = True
    cdef int status
    json_space(json)
    if json_next(json) != c'{':
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    while status == JSON_OK:
        status = json_key(json, first, &key)
        if status == JSON_OK:
            status = read_top_value(index, &key)
        first = False
    if status != JSON_END:
        return status
    json_space(json)
    if json.rest.left > 0:
        return json_fault(json, JSON_TRAILING)
    if not index.has_shards:
        return json_fault_at(json, INDEX_NO_SHARDS, 0)
    if not index.has_version:
        return json_fault_at(json, INDEX_BAD_VERSION, 0)
    return check_names(index)


@cython.final
@cython.no_gc
cdef class ShardTable:
    """Shards of an index: numbers of samples, names, sizes and hashes of files.

    Attributes
    ----------
    has_odd_names : bool
        Names have ``.`` or empty parts: equal files may have several spellings.
    """

    cdef index_t index

    def __dealloc__(self):
        free(self.index.shards)
        free(self.index.texts)
        free(self.index.scratch)
        columns_free(&self.index.schemas)
        slots_free(&self.index.by_text)

    def __reduce__(self):
        raise TypeError("a ShardTable does not pickle; pickle its text")

    def __len__(self):
        return self.index.count

    @property
    def has_odd_names(self):
        return self.index.has_odd_names

    @property
    def nbytes(self):
        """Memory of the table in bytes, names and hashes included."""
        return (
            self.index.count * sizeof(shard_t) + self.index.texts_size
            + self.index.schemas.names_size
        )

    @property
    def text_bytes(self):
        """Bytes of all names and hashes."""
        return self.index.texts_size

    def starts(self):
        """Return the position of each shard's first sample, then the total."""
        cdef Py_buffer buffer
        cdef object found = array("q", bytes(8 * (self.index.count + 1)))
        cdef int64_t *at = int64s_of(found, &buffer, True)
        cdef size_t k
        for k in range(self.index.count):
            at[k + 1] = at[k] + self.index.shards[k].samples
        PyBuffer_Release(&buffer)
        return found

    def samples(self, k):
        """Return the number of samples of shard `k`."""
        return self.index.shards[resolve_position(k, self.index.count)].samples

    def schema(self, k):
        """Return the number of the schema of shard `k`."""
        return self.index.shards[resolve_position(k, self.index.count)].schema

    def where(self, k):
        """Return the byte of the index at which the object of shard `k` begins."""
        return self.index.shards[resolve_position(k, self.index.count)].where

    def file(self, k, Py_ssize_t which):
        """Return a file of shard `k`, or None if it has no such file."""
        cdef Py_ssize_t at = resolve_position(k, self.index.count)
        cdef const file_t *file
        cdef span_t name, text
        if not 0 <= which < FILES:
            raise IndexError(f"a shard has {FILES} files, got {which}")
        file = &self.index.shards[at].files[which]
        if file.name_size == 0:
            return None
        name = file_name_at(&self.index, <uint32_t> (FILES * at + which))
        text = span_of(name.at, name.left + file.hashes_size)
        take(&text, name.left)
        hashes = PyBytes_FromStringAndSize(<const char *> text.at, text.left)
        return decode_text(name), file.nbytes, hashes

    def schemas(self):
        """Return the schemas."""
        cdef span_t text
        cdef uint32_t length
        cdef uint32_t i
        found = []
        for i in range(<uint32_t> self.index.schemas.count):
            text = name_at(&self.index.schemas, i)
            values = {}
            for key in KEY_NAMES[KEY_SCHEMA:]:
                memcpy(&length, take(&text, sizeof(length)), sizeof(length))
                if length > 0:
                    values[key] = PyBytes_FromStringAndSize(
                        <const char *> take(&text, length), length
                    )
            found.append((self.index.schemas.offsets[i], values))
        return found


def parse_index(text, str path not None, *, bint has_backslashes=False):
    """Parse the text of an ``index.json``."""
    cdef Py_buffer buffer
    cdef int status = JSON_NO_MEMORY
    cdef ShardTable table = ShardTable.__new__(ShardTable)
    cdef index_t *index = &table.index
    index.has_backslashes = has_backslashes
    PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len > MAX_TEXT:
            raise FormatError(
                f"an index of {buffer.len:,} bytes; at most {MAX_TEXT:,} are read",
                path, MAX_TEXT,
            )
        index.json.rest = span_of(<const uint8_t *> buffer.buf, buffer.len)
        index.json.size = buffer.len
        with nogil:
            if slots_init(
                &index.by_text,
                <size_t> min(buffer.len // LEAST_SHARD + 1, MAX_SCHEMAS),
            ):
                status = read_index(index)
        if status == JSON_NO_MEMORY:
            raise MemoryError
        if status != JSON_OK:
            name = decode_text(index.name) if status >= INDEX_NUL else None
            raise FormatError(FAULTS[status], path, index.json.fault_at, name)
    finally:
        PyBuffer_Release(&buffer)
        index.json.rest = span_of(NULL, 0)
    slots_free(&index.by_text)
    resize(<void **> &index.shards, index.count + 1, sizeof(shard_t))
    resize(<void **> &index.texts, index.texts_size + 1, 1)
    return table


LARGEST_INDEX = MAX_TEXT           # bytes
