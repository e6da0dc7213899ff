"""A native thread that brings pages ahead of whoever will touch them.

The consumer pushes tasks into a ring and waits, without the GIL, for the one it
needs. The thread asks the kernel for all that it can see, then brings task after
task. It starts with the first task and ends with the iteration.

A fork leaves the thread behind. The child sees that by the generation, makes a
ring of its own from the tasks that are left, and starts a thread when it next
needs one; it never waits for the other.

`Counters` are what several processes share: each step is atomic.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.pages cimport fs_advise_pages, fs_populate_pages, fs_evict_cached
from fastshard._core.platform cimport fs_advise_file
from fastshard._core.threads cimport (
    fs_cond_free, fs_cond_init, fs_cond_broadcast, fs_cond_wait, fs_generation, fs_atomic_load,
    fs_lock, fs_lock_free, fs_lock_init, fs_atomic_next, fs_atomic_store, fs_thread_join,
    fs_thread_start, fs_unlock, fs_watch_forks,
)

cdef enum:
    ROOM = 4096                    # tasks; a power of two

if fs_watch_forks() != 0:
    raise MemoryError("no room for a fork handler")


cdef void line_free(line_t *line) noexcept nogil:
    if line == NULL:
        return
    fs_lock_free(&line.lock)
    fs_cond_free(&line.more)
    fs_cond_free(&line.done)
    free(line.tasks)
    free(line)


cdef line_t *line_new() noexcept nogil:
    cdef line_t *line = <line_t *> calloc(1, sizeof(line_t))
    if line == NULL:
        return NULL
    line.room = ROOM
    line.tasks = <task_t *> calloc(ROOM, sizeof(task_t))
    if line.tasks == NULL:
        free(line)
        return NULL
    fs_lock_init(&line.lock)
    fs_cond_init(&line.more)
    fs_cond_init(&line.done)
    return line


cdef void ask(const task_t *task) noexcept nogil:
    if task.at != NULL:
        fs_advise_pages(task.at, task.size)
    elif not task.forget:
        fs_advise_file(task.fd, task.offset, task.size)


cdef bint do(const task_t *task, bint sure) noexcept nogil:
    """Do a task; without being `sure` that all was brought none that touches it."""
    if task.work != NULL:
        if sure:
            task.work(task.what)
    elif task.forget:
        fs_evict_cached(task.fd, task.offset, task.size)
    elif task.at != NULL:
        return fs_populate_pages(task.at, task.size) == 0
    return True


cdef void step(line_t *line) noexcept nogil:
    """Do the next task."""
    if not do(&line.tasks[line.finished & (line.room - 1)], line.failed == 0):
        fs_atomic_store(&line.failed, line.failed + 1)
    fs_atomic_store(&line.finished, line.finished + 1)


cdef bint sleep(line_t *line) noexcept nogil:
    """Wait for a task; False: none will come."""
    fs_lock(&line.lock)
    fs_atomic_store(&line.sleeps, 1)
    while fs_atomic_load(&line.pushed) == line.finished and not fs_atomic_load(&line.stops):
        fs_cond_wait(&line.more, &line.lock)
    fs_atomic_store(&line.sleeps, 0)
    fs_unlock(&line.lock)
    return not fs_atomic_load(&line.stops)


cdef void *run(void *argument) noexcept nogil:
    cdef line_t *line = <line_t *> argument
    cdef uint64_t asked = line.finished
    cdef task_t *task
    while not fs_atomic_load(&line.stops):
        if fs_atomic_load(&line.pushed) == line.finished:
            if not sleep(line):
                break
        while asked < fs_atomic_load(&line.pushed) and not fs_atomic_load(&line.stops):
            task = &line.tasks[asked & (line.room - 1)]
            if task.ask:
                ask(task)
            asked += 1
        if fs_atomic_load(&line.stops):
            break
        step(line)
        if fs_atomic_load(&line.waits):
            fs_lock(&line.lock)
            fs_cond_broadcast(&line.done)
            fs_unlock(&line.lock)
    return NULL


@cython.final
@cython.no_gc
cdef class Prefetcher:
    """One thread and its tasks. Not for several consumers at a time."""

    def __cinit__(self):
        self.line = line_new()
        if self.line == NULL:
            raise MemoryError
        self.owners = [None] * ROOM

    def __reduce__(self):
        raise TypeError("a Prefetcher does not pickle")

    cdef line_t *renewed(self) except NULL:
        """Return the ring; in a child of fork a new one."""
        cdef line_t *old = self.line
        cdef line_t *line
        if not self.running or self.generation == fs_generation():
            return old
        line = line_new()
        if line == NULL:
            raise MemoryError
        memcpy(line.tasks, old.tasks, ROOM * sizeof(task_t))
        line.pushed = old.pushed
        line.finished = fs_atomic_load(&old.finished)
        line.failed = fs_atomic_load(&old.failed)
        self.line = line
        self.running = False
        free(old.tasks)            # its lock may be held by a thread that is not here
        free(old)
        return line

    cdef int start(self) except -1:
        """Have the thread at work; without one, do all tasks here and now."""
        cdef line_t *line = self.line
        if self.running:
            return 0
        line.stops = 0
        if fs_thread_start(&self.thread, run, line) != 0:
            with nogil:            # the system allows no more threads
                while line.finished < line.pushed:
                    step(line)
            return 0
        self.generation = fs_generation()
        self.running = True
        return 0

    cdef uint64_t push(self, task_t task, object owner) except 0:
        """Add a task; returns its number, from 1 on. `owner` keeps its memory."""
        cdef line_t *line = self.renewed()
        cdef uint64_t place = line.pushed & (line.room - 1)
        if line.pushed - fs_atomic_load(&line.finished) == line.room:
            self.wait(line.pushed - line.room + 1)
            line = self.line
        self.release()
        self.owners[place] = owner
        line.tasks[place] = task
        fs_atomic_store(&line.pushed, line.pushed + 1)
        self.start()
        if fs_atomic_load(&line.sleeps):
            fs_lock(&line.lock)
            fs_cond_broadcast(&line.more)
            fs_unlock(&line.lock)
        return line.pushed

    cdef bint wait(self, uint64_t task) except -1:
        """Wait until a task is finished, without the GIL; False: it was already."""
        cdef line_t *line = self.line
        if fs_atomic_load(&line.finished) >= task:
            return False
        line = self.renewed()
        self.start()
        with nogil:
            fs_lock(&line.lock)
            fs_atomic_store(&line.waits, 1)
            while fs_atomic_load(&line.finished) < task:
                fs_cond_wait(&line.done, &line.lock)
            fs_atomic_store(&line.waits, 0)
            fs_unlock(&line.lock)
        return True

    cdef bint is_backlogged(self) noexcept:
        """Whether so many tasks wait that one more, which nobody needs, is no help."""
        return self.line.pushed - fs_atomic_load(&self.line.finished) > self.line.room // 2

    cdef uint64_t failed(self) noexcept:
        """How many tasks failed."""
        return fs_atomic_load(&self.line.failed)

    cdef int release(self) except -1:
        """Let go of the owners of finished tasks."""
        cdef uint64_t finished = fs_atomic_load(&self.line.finished)
        cdef Py_ssize_t place
        while self.released < finished:
            place = <Py_ssize_t> (self.released & (ROOM - 1))
            self.released += 1
            self.owners[place] = None
        return 0

    cdef int stop(self) except -1:
        """End the thread, which takes as long as the task it is at."""
        cdef line_t *line = self.renewed()
        if not self.running:
            return 0
        self.running = False
        with nogil:
            fs_lock(&line.lock)
            fs_atomic_store(&line.stops, 1)
            fs_cond_broadcast(&line.more)
            fs_unlock(&line.lock)
            fs_thread_join(self.thread)
        return 0

    def __dealloc__(self):
        if self.line != NULL:
            self.stop()
            line_free(self.line)


@cython.final
cdef class Counters:
    """Counters of 64 bits at the start of a buffer; each step is atomic.

    Parameters
    ----------
    memory : buffer
        Writable, at an address that 8 divides; kept.
    count : int
    """

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t *at
    cdef Py_ssize_t count

    def __cinit__(self, memory, Py_ssize_t count):
        self.at = <uint64_t *> bytes_of(memory, &self.buffer, writable=True)
        self.held = True
        if count < 0 or count > self.buffer.len // 8 or <size_t> self.at % 8:
            raise ValueError(f"{count} counters in {self.buffer.len} bytes")
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        return fs_atomic_load(self.where(i))

    def add(self, Py_ssize_t i):
        """Count one up by 1."""
        fs_atomic_next(self.where(i))

    def __reduce__(self):
        raise TypeError("counters do not pickle")

    cdef uint64_t *where(self, Py_ssize_t i) except NULL:
        if not 0 <= i < self.count:
            raise IndexError(f"counter {i} of {self.count}")
        return self.at + i

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)
