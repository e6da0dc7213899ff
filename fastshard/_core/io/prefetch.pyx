"""Native thread that populates pages ahead of their reader, and shared counters.

The consumer pushes tasks into a ring and waits, without the GIL, for the one it needs.
The thread advises the kernel of all queued tasks, then performs them in order. It
starts with the first task and ends with the iteration.

A child of fork has no thread. It notices by the fork generation, copies the remaining
tasks into a queue of its own, and starts a thread when it next needs one. It never
waits for the parent's thread.

`Counters` are shared between processes; each operation is atomic.
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
    fs_cond_free, fs_cond_init, fs_cond_broadcast, fs_cond_wait, fs_generation,
    fs_atomic_load, fs_lock, fs_lock_free, fs_lock_init, fs_atomic_next,
    fs_atomic_store, fs_thread_join, fs_thread_start, fs_unlock, fs_watch_forks,
)

cdef enum:
    CAPACITY = 4096                # tasks; a power of two

if fs_watch_forks() != 0:
    raise MemoryError("cannot register a fork handler")


cdef void queue_free(queue_t *queue) noexcept nogil:
    if queue == NULL:
        return
    fs_lock_free(&queue.lock)
    fs_cond_free(&queue.more)
    fs_cond_free(&queue.done)
    free(queue.tasks)
    free(queue)


cdef queue_t *queue_new() noexcept nogil:
    cdef queue_t *queue = <queue_t *> calloc(1, sizeof(queue_t))
    if queue == NULL:
        return NULL
    queue.capacity = CAPACITY
    queue.tasks = <task_t *> calloc(CAPACITY, sizeof(task_t))
    if queue.tasks == NULL:
        free(queue)
        return NULL
    fs_lock_init(&queue.lock)
    fs_cond_init(&queue.more)
    fs_cond_init(&queue.done)
    return queue


cdef void advise(const task_t *task) noexcept nogil:
    if task.at != NULL:
        fs_advise_pages(task.at, task.size)
    elif not task.evict:
        fs_advise_file(task.fd, task.offset, task.size)


cdef bint perform(const task_t *task, bint populated) noexcept nogil:
    """Perform a task; return False if its pages cannot be populated.

    Callbacks touch the pages of earlier tasks: they are called only if `populated`.
    """
    if task.callback != NULL:
        if populated:
            task.callback(task.argument)
    elif task.evict:
        fs_evict_cached(task.fd, task.offset, task.size)
    elif task.at != NULL:
        return fs_populate_pages(task.at, task.size) == 0
    return True


cdef void step(queue_t *queue) noexcept nogil:
    """Perform the next task."""
    cdef task_t *task = &queue.tasks[queue.finished & (queue.capacity - 1)]
    if not perform(task, queue.failed == 0):
        fs_atomic_store(&queue.failed, queue.failed + 1)
    fs_atomic_store(&queue.finished, queue.finished + 1)


cdef bint sleep(queue_t *queue) noexcept nogil:
    """Wait for a task; return False if the thread is to end."""
    fs_lock(&queue.lock)
    fs_atomic_store(&queue.sleeps, 1)
    while (
        fs_atomic_load(&queue.pushed) == queue.finished
        and not fs_atomic_load(&queue.stops)
    ):
        fs_cond_wait(&queue.more, &queue.lock)
    fs_atomic_store(&queue.sleeps, 0)
    fs_unlock(&queue.lock)
    return not fs_atomic_load(&queue.stops)


cdef void *run(void *argument) noexcept nogil:
    """Perform tasks until told to stop: the body of the thread."""
    cdef queue_t *queue = <queue_t *> argument
    cdef uint64_t advised = queue.finished
    cdef task_t *task
    while not fs_atomic_load(&queue.stops):
        if fs_atomic_load(&queue.pushed) == queue.finished:
            if not sleep(queue):
                break
        while (
            advised < fs_atomic_load(&queue.pushed)
            and not fs_atomic_load(&queue.stops)
        ):
            task = &queue.tasks[advised & (queue.capacity - 1)]
            if task.advise:
                advise(task)
            advised += 1
        if fs_atomic_load(&queue.stops):
            break
        step(queue)
        if fs_atomic_load(&queue.waits):
            fs_lock(&queue.lock)
            fs_cond_broadcast(&queue.done)
            fs_unlock(&queue.lock)
    return NULL


@cython.final
@cython.no_gc
cdef class Prefetcher:
    """Thread with a queue of tasks, for one consumer at a time."""

    def __cinit__(self):
        self.queue = queue_new()
        if self.queue == NULL:
            raise MemoryError
        self.owners = [None] * CAPACITY

    def __reduce__(self):
        raise TypeError("a Prefetcher does not pickle")

    cdef queue_t *current_queue(self) except NULL:
        """Return the queue; in a child of fork make a new one first."""
        cdef queue_t *old = self.queue
        cdef queue_t *queue
        if not self.running or self.generation == fs_generation():
            return old
        queue = queue_new()
        if queue == NULL:
            raise MemoryError
        memcpy(queue.tasks, old.tasks, CAPACITY * sizeof(task_t))
        queue.pushed = old.pushed
        queue.finished = fs_atomic_load(&old.finished)
        queue.failed = fs_atomic_load(&old.failed)
        self.queue = queue
        self.running = False
        free(old.tasks)            # not `queue_free`: the parent may have held the lock
        free(old)
        return queue

    cdef int start(self) except -1:
        """Start the thread unless it runs; if that fails, perform all tasks now."""
        cdef queue_t *queue = self.queue
        if self.running:
            return 0
        queue.stops = 0
        if fs_thread_start(&self.thread, run, queue) != 0:
            with nogil:            # the limit of threads is reached
                while queue.finished < queue.pushed:
                    step(queue)
            return 0
        self.generation = fs_generation()
        self.running = True
        return 0

    cdef uint64_t push(self, task_t task, object owner) except 0:
        """Add a task and return its number, from 1 on; `owner` keeps its memory."""
        cdef queue_t *queue = self.current_queue()
        cdef uint64_t slot = queue.pushed & (queue.capacity - 1)
        if queue.pushed - fs_atomic_load(&queue.finished) == queue.capacity:
            self.wait(queue.pushed - queue.capacity + 1)
            queue = self.queue
        self.release()
        self.owners[slot] = owner
        queue.tasks[slot] = task
        fs_atomic_store(&queue.pushed, queue.pushed + 1)
        self.start()
        if fs_atomic_load(&queue.sleeps):
            fs_lock(&queue.lock)
            fs_cond_broadcast(&queue.more)
            fs_unlock(&queue.lock)
        return queue.pushed

    cdef bint wait(self, uint64_t task) except -1:
        """Wait without the GIL for the end of a task; return False if it has ended."""
        cdef queue_t *queue = self.queue
        if fs_atomic_load(&queue.finished) >= task:
            return False
        queue = self.current_queue()
        self.start()
        with nogil:
            fs_lock(&queue.lock)
            fs_atomic_store(&queue.waits, 1)
            while fs_atomic_load(&queue.finished) < task:
                fs_cond_wait(&queue.done, &queue.lock)
            fs_atomic_store(&queue.waits, 0)
            fs_unlock(&queue.lock)
        return True

    cdef bint is_backlogged(self) noexcept:
        """Return whether so many tasks wait that an optional one would not help."""
        cdef uint64_t waiting = self.queue.pushed - fs_atomic_load(&self.queue.finished)
        return waiting > self.queue.capacity // 2

    cdef uint64_t failure_count(self) noexcept:
        """Return the number of tasks that failed."""
        return fs_atomic_load(&self.queue.failed)

    cdef int release(self) except -1:
        """Release the owners of finished tasks."""
        cdef uint64_t finished = fs_atomic_load(&self.queue.finished)
        cdef Py_ssize_t slot
        while self.released < finished:
            slot = <Py_ssize_t> (self.released & (CAPACITY - 1))
            self.released += 1
            self.owners[slot] = None
        return 0

    cdef int stop(self) except -1:
        """Stop the thread after its current task, and join it."""
        cdef queue_t *queue = self.current_queue()
        if not self.running:
            return 0
        self.running = False
        with nogil:
            fs_lock(&queue.lock)
            fs_atomic_store(&queue.stops, 1)
            fs_cond_broadcast(&queue.more)
            fs_unlock(&queue.lock)
            fs_thread_join(self.thread)
        return 0

    def __dealloc__(self):
        if self.queue != NULL:
            self.stop()
            queue_free(self.queue)


@cython.final
cdef class Counters:
    """Array of atomic 64-bit counters at the start of a buffer.

    Parameters
    ----------
    memory : buffer
        Writable, aligned to 8 bytes; kept.
    count : int
        Number of counters.
    """

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t *at
    cdef Py_ssize_t count

    def __cinit__(self, memory, Py_ssize_t count):
        self.at = <uint64_t *> bytes_of(memory, &self.buffer, writable=True)
        self.held = True
        if count < 0 or count > self.buffer.len // 8 or <size_t> self.at % 8:
            raise ValueError(
                f"{count} counters need an aligned buffer of {8 * count} bytes, "
                f"got {self.buffer.len}"
            )
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        return fs_atomic_load(self.address_of(i))

    def add(self, Py_ssize_t i):
        """Increment a counter by 1."""
        fs_atomic_next(self.address_of(i))

    def __reduce__(self):
        raise TypeError("Counters do not pickle")

    cdef uint64_t *address_of(self, Py_ssize_t i) except NULL:
        if not 0 <= i < self.count:
            raise IndexError(
                f"counter {i} is out of range: there are {self.count} counters"
            )
        return self.at + i

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)
