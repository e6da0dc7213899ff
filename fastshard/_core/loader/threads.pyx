"""State that the threads of a loader share: leases of memory, clocks of their steps.

A lease exports the bytes of a buffer and is the last base of the arrays on them: once
no array refers to them, they are used again. Slices, reshapes, memoryviews and tensors
keep it; a weak reference to the first array would not do, for NumPy's views of views
refer past it. A lease may end in any thread, in a garbage collection and under any
lock: it only takes a lock that no other code runs under. Those that a forked child
inherits end without an effect: its parent has the memory, too.

A thread writes to clocks of its own and any thread may read them: a reader starts again
if the writer was in the middle of a change.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memmove

from fastshard._core.buffers cimport bytes_of
from fastshard._core.pages cimport fs_exact_now
from fastshard._core.threads cimport (
    fs_atomic_load, fs_atomic_store, fs_generation, fs_lock, fs_lock_free, fs_lock_init,
    fs_lock_t, fs_unlock, fs_watch_forks,
)

import os
import threading
import time

from fastshard._core.dataset.gather import count_bytes

if fs_watch_forks() != 0:
    raise MemoryError("cannot register a fork handler")

cdef struct spare_t:
    PyObject *memory               # a buffer; this refers to it
    size_t at                      # its address
    Py_ssize_t nbytes


@cython.final
@cython.no_gc
cdef class Spares:
    """Free buffers, kept for later leases."""

    cdef spare_t *spares           # the last one came last
    cdef Py_ssize_t count
    cdef Py_ssize_t most
    cdef fs_lock_t lock            # of the three; no Python code runs under it
    cdef unsigned generation       # of the process that made this

    def __cinit__(self, Py_ssize_t most):
        if most < 0:
            raise ValueError(f"most must not be negative, got {most}")
        self.spares = <spare_t *> PyMem_RawCalloc(most + 1, sizeof(spare_t))
        if self.spares == NULL:
            raise MemoryError
        fs_lock_init(&self.lock)
        self.most = most
        self.generation = fs_generation()

    @property
    def is_inherited(self):
        """True in a forked child of the process that made this: nothing is kept."""
        return self.generation != fs_generation()

    def __len__(self):
        return self.count

    def __reduce__(self):
        raise TypeError("Spares do not pickle")

    def take(self, Py_ssize_t nbytes, size_t alignment=1):
        """Remove and return a buffer of `nbytes` to twice as many, or None."""
        cdef PyObject *found = NULL
        cdef spare_t *spare
        cdef Py_ssize_t i
        if self.generation != fs_generation():
            return None            # the lock may be held by a thread of the parent
        fs_lock(&self.lock)
        for i in range(self.count - 1, -1, -1):
            spare = self.spares + i
            if spare.nbytes // 2 <= nbytes <= spare.nbytes and (
                spare.at % alignment == 0
            ):
                found = spare.memory
                self.remove(i)
                break
        fs_unlock(&self.lock)
        if found == NULL:
            return None
        memory = <object> found
        Py_DECREF(memory)          # the list's reference
        return memory

    def close(self):
        """Drop the buffers, and from now on those whose leases end."""
        cdef spare_t *spares
        cdef Py_ssize_t count
        if self.generation != fs_generation():
            return
        spares = <spare_t *> PyMem_RawCalloc(1, sizeof(spare_t))
        if spares == NULL:
            raise MemoryError
        fs_lock(&self.lock)
        spares, self.spares = self.spares, spares
        count, self.count = self.count, 0
        self.most = 0
        fs_unlock(&self.lock)
        drop_all(spares, count)

    cdef void remove(self, Py_ssize_t i) noexcept:
        """Remove a buffer from the list, under the lock."""
        self.count -= 1
        memmove(
            self.spares + i, self.spares + i + 1, (self.count - i) * sizeof(spare_t)
        )

    cdef void add(self, object memory, uint8_t *at, Py_ssize_t nbytes) noexcept:
        """Keep a buffer whose lease ended."""
        cdef spare_t spare = spare_t(<PyObject *> memory, <size_t> at, nbytes)
        cdef PyObject *dropped = NULL
        if self.generation != fs_generation():
            return
        fs_lock(&self.lock)
        if self.most > 0:
            if self.count == self.most:
                dropped = self.spares[0].memory
                self.remove(0)
            Py_INCREF(memory)
            self.spares[self.count] = spare
            self.count += 1
        fs_unlock(&self.lock)
        if dropped != NULL:
            Py_DECREF(<object> dropped)  # without the lock: may run code of others

    def __dealloc__(self):
        if self.spares != NULL:
            drop_all(self.spares, self.count)
            fs_lock_free(&self.lock)


cdef void drop_all(spare_t *spares, Py_ssize_t count) noexcept:
    """Free a list and its references."""
    cdef Py_ssize_t i
    for i in range(count):
        Py_DECREF(<object> spares[i].memory)
    PyMem_RawFree(spares)


@cython.final
@cython.no_gc
cdef class MemoryLease:
    """Writable buffer on leased memory.

    When it is freed, `spares` keep the memory or a counter is incremented.

    Attributes
    ----------
    is_lost : bool
        True: nothing happens when the lease ends.
    """

    cdef object memory
    cdef Py_buffer buffer
    cdef bint is_held              # whether `buffer` is
    cdef Spares spares
    cdef object counters
    cdef Py_ssize_t counter
    cdef unsigned generation       # of the process that made this
    cdef public bint is_lost
    cdef object __weakref__

    def __cinit__(
        self, memory, Spares spares=None, counters=None, Py_ssize_t counter=0
    ):
        bytes_of(memory, &self.buffer, writable=True)
        self.is_held = True
        self.memory = memory
        self.spares = spares
        self.counters = counters
        self.counter = counter
        self.generation = fs_generation()

    def __len__(self):
        return self.buffer.len

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer.buf, self.buffer.len, 0, flags)

    def __reduce__(self):
        raise TypeError("a MemoryLease does not pickle")

    def __dealloc__(self):
        cdef uint8_t *at = <uint8_t *> self.buffer.buf
        cdef Py_ssize_t nbytes = self.buffer.len
        if not self.is_held:
            return
        PyBuffer_Release(&self.buffer)
        if self.is_lost or self.generation != fs_generation():
            return
        if self.counters is not None:
            self.counters.add(self.counter)
        elif self.spares is not None:
            self.spares.add(self.memory, at, nbytes)


cdef extern from "Python.h":
    PyObject *PyThreadState_GetDict()

cdef object close_file = os.close  # modules are cleared before clocks at the exit

cdef enum:
    FETCH                          # in the order of STEP_NAMES
    MAP
    COLLATE
    FULL
    IDLE
    NO_STEP                        # also the number of steps
    BITS = 5                       # of a wait, below its highest one
    BUCKETS = 2048                 # of waits; the last one's upper end is above 2^64 ns
    ATTEMPTS = 10000               # reads of clocks that change meanwhile
    COUNTED = 16                   # samples of a batch whose bytes are counted

cdef uint64_t PROBE_EVERY = 20_000_000  # ns between probes of a step
cdef uint64_t COUNT_EVERY = 10_000_000  # ns between counts of bytes
cdef str SCHEDSTAT = "/proc/thread-self/schedstat"
cdef tuple STEP_NAMES = ("fetch", "map", "collate", "full", "idle")
cdef object CURRENT = object()  # key of a thread's times among its own objects


cdef dict thread_objects():
    """Return the calling thread's own objects."""
    cdef PyObject *found = PyThreadState_GetDict()
    if found is NULL:
        raise MemoryError
    return <dict> found


cpdef ThreadTimes current_times():
    """Return the times of the calling thread, or None outside of loaders."""
    cdef PyObject *found = PyDict_GetItem(thread_objects(), CURRENT)
    return None if found is NULL else <ThreadTimes> found


cpdef object set_current_times(ThreadTimes times):
    """Set the times of the calling thread."""
    thread_objects()[CURRENT] = times


def enter_step(step):
    """Begin a step of the calling thread, if it belongs to a loader."""
    cdef ThreadTimes times = current_times()
    if times is not None:
        times.enter_number(step_of(step))


cdef int step_of(object name) except -1:
    """Return the number of a step; NO_STEP for None."""
    cdef int k
    if name is None:
        return NO_STEP
    for k in range(NO_STEP):
        if name is <object> STEP_NAMES[k]:
            return k
    return STEP_NAMES.index(name)


cdef uint64_t scaled(uint64_t value, uint64_t whole, uint64_t part) noexcept:
    """Extrapolate a value, measured during a part of a time, to the whole time."""
    return 0 if part == 0 else <uint64_t> (<double> value * whole / part)


@cython.final
cdef class ThreadTimes:
    """Nanoseconds and counts of one thread; written by that thread alone.

    A thread is always in one step, from `enter` to the next `enter`: the steps add up
    to the thread's whole time. Code inside a step adds to `fetch`, `decode` and
    `resize`; that time is not counted for the step.

    As a context, which must not be entered twice, they are those of the calling thread,
    the consumer's, while it makes a batch.

    Attributes
    ----------
    fetch, decode, resize : int
        Nanoseconds, of work inside other steps.
    bytes_read, bytes_decoded : int
        Stored bytes of samples, and bytes of decoded images.
    filled : int
        Truncated images that were filled.
    """

    cdef public uint64_t fetch
    cdef public uint64_t decode
    cdef public uint64_t resize
    cdef public uint64_t bytes_read
    cdef public uint64_t bytes_decoded
    cdef public uint64_t filled
    cdef uint64_t uncounted        # samples whose bytes are not in `bytes_read`
    cdef uint64_t counted          # samples, and their bytes
    cdef uint64_t counted_bytes
    cdef uint64_t next_count
    cdef bint is_inline
    cdef uint64_t change           # odd while the thread changes the fields below
    cdef int step
    cdef uint64_t since            # start of the step
    cdef uint64_t ended            # 0: the thread runs
    cdef uint64_t nested           # fetch, decode and resize at the start of the step
    cdef uint64_t own[NO_STEP]     # ns, without nested steps
    cdef uint64_t whole[NO_STEP]   # ns
    # Of some steps, for the others to be extrapolated from
    cdef bint probing
    cdef uint64_t next_probe[NO_STEP]
    cdef uint64_t probe_start
    cdef uint64_t probe_cpu
    cdef uint64_t probe_runqueue
    cdef uint64_t probed[NO_STEP]
    cdef uint64_t cpu[NO_STEP]
    cdef uint64_t runqueue[NO_STEP]
    cdef ThreadTimes outer         # the thread's times outside of the context
    cdef int fd                    # of schedstat; -1: there is none
    cdef object owner              # process and thread that opened it
    cdef tuple base                # cpu and runqueue at the thread's start
    cdef tuple last                # cpu and runqueue at the thread's end

    def __cinit__(self, *, bint is_inline=False):
        self.is_inline = is_inline
        self.step = NO_STEP
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close_file(self.fd)

    def __reduce__(self):
        raise TypeError("ThreadTimes does not pickle")

    def __enter__(self):
        self.outer = current_times()
        set_current_times(self)
        return self

    def __exit__(self, kind, error, trace):
        self.switch_to(IDLE)
        set_current_times(self.outer)
        self.outer = None

    def start(self, uint64_t since=0):
        """Begin idle, as if since an earlier time; called by the thread itself."""
        self.open_schedstat()
        self.base = self.read_schedstat() or (0, 0)
        self.switch_to(IDLE)
        if since:
            self.since = since

    def collate(self, samples not None):
        """Enter the step ``"collate"``; call `count`."""
        self.count_at(samples, self.switch_to(COLLATE))

    def count(self, samples not None):
        """Count the stored bytes of samples that were read.

        Of some, once in `COUNT_EVERY`; the bytes of the others are extrapolated.
        """
        self.count_at(samples, fs_exact_now())

    cdef int count_at(self, samples, uint64_t now) except -1:
        cdef uint64_t nbytes
        cdef Py_ssize_t number = len(samples)
        self.uncounted += number
        if now < self.next_count:
            return 0
        self.next_count = now + COUNT_EVERY
        some = samples[:: (number + COUNTED - 1) // COUNTED or 1]
        nbytes, number = count_bytes(some), len(some)
        self.bytes_read += scaled(nbytes, self.uncounted, number)
        self.uncounted = 0
        self.counted_bytes += nbytes
        self.counted += number
        return 0

    def enter(self, step):
        """End the step, and begin another; return the one that ended.

        None is not a step.
        """
        cdef int before = self.step
        self.enter_number(step_of(step))
        return None if before == NO_STEP else STEP_NAMES[before]

    def stop(self):
        """End the step; called by the thread itself at its end."""
        self.switch_to(NO_STEP)
        self.last = self.read_schedstat()
        self.ended = self.since
        self.close_schedstat()

    cdef int enter_number(self, int step) except -1:
        """Enter a step, unless it is the current one."""
        if step != self.step:
            self.switch_to(step)
        return 0

    cdef uint64_t switch_to(self, int step) except? 0:
        """End the step, and begin another; return the time."""
        cdef uint64_t now, spent, nested
        if self.probing:
            self.end_probe()
        now = fs_exact_now()
        fs_atomic_store(&self.change, self.change + 1)
        if self.step != NO_STEP:
            spent = now - self.since
            nested = self.fetch + self.decode + self.resize
            self.whole[self.step] += spent
            self.own[self.step] += spent - min(spent, nested - self.nested)
            self.nested = nested
        self.step = step
        self.since = now
        fs_atomic_store(&self.change, self.change + 1)
        if step < FULL and now >= self.next_probe[step]:
            self.begin_probe(now)
        return now

    cdef int begin_probe(self, uint64_t now) except -1:
        self.next_probe[self.step] = now + PROBE_EVERY
        if self.is_inline and self.owner != (os.getpid(), threading.get_ident()):
            self.open_schedstat()
        found = self.read_schedstat()
        if found is not None:
            self.probe_runqueue = found[1]
            self.probe_cpu = time.thread_time_ns()
            self.probe_start = fs_exact_now()
            self.probing = True
        return 0

    cdef int end_probe(self) except -1:
        cdef uint64_t spent = fs_exact_now() - self.probe_start
        cdef uint64_t cpu = time.thread_time_ns()
        found = self.read_schedstat()
        self.probing = False
        if found is None or cpu < self.probe_cpu:  # another thread continues with it
            return 0
        fs_atomic_store(&self.change, self.change + 1)
        self.probed[self.step] += spent
        self.cpu[self.step] += cpu - self.probe_cpu
        self.runqueue[self.step] += max(0, found[1] - self.probe_runqueue)
        fs_atomic_store(&self.change, self.change + 1)
        return 0

    cdef int open_schedstat(self) except -1:
        self.close_schedstat()
        try:
            self.fd = os.open(SCHEDSTAT, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            self.fd = -1
        self.owner = os.getpid(), threading.get_ident()
        return 0

    cdef int close_schedstat(self) except -1:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        return 0

    cdef tuple read_schedstat(self):
        """Return the thread's ns on a CPU, and ns runnable without one, or None."""
        if self.fd < 0 or self.owner[0] != os.getpid():
            return None
        try:
            cpu, runqueue, *_ = os.pread(self.fd, 128, 0).split()
            return int(cpu), int(runqueue)
        except (OSError, ValueError):
            return None

    def snapshot(self, uint64_t now):
        """Return the times until now, the current step's included.

        Any thread may call it. A thread that has ended counts as idle since.
        """
        cdef uint64_t own[NO_STEP]
        cdef uint64_t whole[NO_STEP]
        cdef uint64_t since, nested, before, ended, spent, cpu, runqueue, on_cpu
        cdef int step, k, attempt
        for attempt in range(ATTEMPTS):
            change = fs_atomic_load(&self.change)
            step, since, before, ended = self.step, self.since, self.nested, self.ended
            fetch, decode, resize = self.fetch, self.decode, self.resize
            cpu = runqueue = 0
            for k in range(NO_STEP):
                own[k], whole[k] = self.own[k], self.whole[k]
                cpu += scaled(self.cpu[k], self.whole[k], self.probed[k])
                runqueue += scaled(self.runqueue[k], self.whole[k], self.probed[k])
            on_cpu = self.cpu[FETCH] + self.runqueue[FETCH]
            on_cpu = scaled(on_cpu, own[FETCH], self.probed[FETCH])
            if not change & 1 and change == fs_atomic_load(&self.change):
                break
        nested = fetch + decode + resize
        if step != NO_STEP and now > since:
            spent = now - since
            own[step] += spent - min(spent, nested - before)
        elif ended and now > ended:
            own[IDLE] += now - ended
        times = {STEP_NAMES[k]: own[k] for k in range(NO_STEP)}
        blocked = fetch + own[FETCH] - min(own[FETCH], on_cpu)
        times["fetch"] += fetch
        uncounted = scaled(self.counted_bytes, self.uncounted, self.counted)
        times |= {"decode": decode, "resize": resize}
        times["bytes_read"] = self.bytes_read + uncounted
        times |= {"bytes_decoded": self.bytes_decoded, "filled": self.filled}
        found = self.last or self.read_schedstat()
        if found is None:
            found = None, None
        elif self.is_inline:
            found = cpu, runqueue
        else:
            found = found[0] - self.base[0], found[1] - self.base[1]
        times["cpu"], times["runqueue"] = found
        times["blocked"] = None if found[0] is None else blocked
        return times


@cython.final
cdef class ConsumerTimes:
    """Nanoseconds and counts of the consumer of a loader; written by its thread.

    The consumer calls `ask` when it wants a batch, then `answer`, or `fail` when it
    gets none.
    """

    cdef ThreadTimes times
    cdef int step
    cdef uint64_t change           # odd while the consumer changes the fields below
    cdef readonly uint64_t first   # start; 0: not begun
    cdef uint64_t last             # last change
    cdef uint64_t end              # of the loader; 0: it continues
    cdef bint is_waiting
    cdef uint64_t consumer
    cdef uint64_t wait
    cdef uint64_t batches
    cdef uint64_t samples
    cdef uint64_t skipped
    cdef uint64_t skipped_before
    cdef uint64_t ready            # sum
    cdef uint64_t asked            # batches that were ready when one was requested
    cdef uint64_t waits[BUCKETS]

    def __cinit__(self, ThreadTimes times=None, step=None, uint64_t skipped=0):
        self.times = times
        self.skipped_before = skipped
        self.step = step_of(step)

    def __reduce__(self):
        raise TypeError("ConsumerTimes does not pickle")

    def begin(self):
        """Begin the measured time, unless it has begun."""
        if self.first == 0:
            self.first = self.last = fs_exact_now()

    def ask(self, uint64_t ready=0):
        """Begin a wait, with a number of batches that are ready."""
        cdef uint64_t now = self.enter_step(self.step)
        fs_atomic_store(&self.change, self.change + 1)
        if self.first == 0:
            self.first = now
        else:
            self.consumer += now - self.last
        self.last = now
        self.end = 0
        self.asked = ready
        self.is_waiting = True
        fs_atomic_store(&self.change, self.change + 1)

    cpdef object answer(self, uint64_t samples, uint64_t skipped=0):
        """End a wait with a batch of samples; `skipped` were left out."""
        cdef uint64_t now = self.enter_step(IDLE)
        cdef uint64_t wait = now - self.last
        fs_atomic_store(&self.change, self.change + 1)
        self.wait += wait
        self.last = now
        self.is_waiting = False
        self.batches += 1
        self.samples += samples
        self.skipped += skipped
        self.ready += self.asked
        self.waits[bucket_of(wait)] += 1
        fs_atomic_store(&self.change, self.change + 1)

    cdef uint64_t enter_step(self, int step) except? 0:
        """Begin a step of the consumer's thread, if it has times; return the time."""
        return fs_exact_now() if self.times is None else self.times.switch_to(step)

    def end_call(self, uint64_t samples, uint64_t skipped):
        """End a wait with a batch, or without one if it has no samples."""
        if samples:
            self.answer(samples, skipped - self.skipped_before - self.skipped)
        else:
            self.fail()
            self.stop()

    cpdef object fail(self):
        """End a wait without a batch."""
        cdef uint64_t now = self.enter_step(IDLE)
        fs_atomic_store(&self.change, self.change + 1)
        self.wait += now - self.last
        self.last = now
        self.is_waiting = False
        fs_atomic_store(&self.change, self.change + 1)

    cpdef object stop(self):
        """End the measured time: the loader is exhausted or closed."""
        if self.end == 0:
            self.end = fs_exact_now()

    def snapshot(self):
        """Return the times until now; any thread may call it."""
        cdef uint64_t now = 0
        cdef uint64_t first, last, consumer, wait
        cdef int k, attempt
        cdef bint is_waiting
        for attempt in range(ATTEMPTS):
            change = fs_atomic_load(&self.change)
            first, last, is_waiting = self.first, self.last, self.is_waiting
            consumer, wait, ready = self.consumer, self.wait, self.ready
            counts = {"batches": self.batches, "samples": self.samples}
            counts["skipped"] = self.skipped
            waits = {k: self.waits[k] for k in range(BUCKETS) if self.waits[k]}
            now = max(last, self.end or fs_exact_now())
            if not change & 1 and change == fs_atomic_load(&self.change):
                break
        if first == 0:
            first = last = now
        if is_waiting:
            wait += now - last
        else:
            consumer += now - last
        times = {"wall": now - first, "consumer": consumer, "wait": wait}
        return now, times, counts, ready, waits


cdef Py_ssize_t bucket_of(uint64_t ns) noexcept:
    """Return the bucket of a wait: its highest 6 bits, and their place."""
    cdef int shift = 0
    while ns >> shift >= 2 << BITS:
        shift += 1
    return (shift << BITS) + <Py_ssize_t> (ns >> shift)


def bucket_value(Py_ssize_t bucket):
    """Return the middle of a bucket of waits, ns; a wait differs by 1.6 % at most."""
    if bucket < 2 << BITS:
        return float(bucket)
    shift = (bucket >> BITS) - 1
    return (bucket - (shift << BITS) + 0.5) * 2.0 ** shift
