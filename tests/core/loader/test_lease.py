"""Leases of memory, and the buffers that are kept between them."""

import numpy as np
import pytest

from fastshard._core.loader.threads import MemoryLease, Spares


def test_spares_give_buffers_that_fit():
    spares = Spares(2)
    MemoryLease(np.empty(100, "u1"), spares)
    assert len(spares) == 1
    assert spares.take(101) is spares.take(49) is spares.take(60, 1 << 40) is None
    assert len(spares.take(60)) == 100
    assert len(spares) == 0


def test_spares_keep_those_that_came_last():
    spares = Spares(2)
    for k in range(5):
        MemoryLease(np.empty(100 + k, "u1"), spares)
    assert [len(spares.take(100)), len(spares.take(100))] == [104, 103]
    memory = np.empty(100, "u1")
    spares.close()
    MemoryLease(memory, spares)
    assert len(spares) == 0


def test_a_lost_lease_returns_nothing():
    spares = Spares(2)
    lease = MemoryLease(np.empty(100, "u1"), spares)
    lease.is_lost = True
    del lease
    assert len(spares) == 0


def test_a_lease_needs_writable_contiguous_memory():
    with pytest.raises((BufferError, TypeError, ValueError)):
        MemoryLease(b"bytes")
    with pytest.raises((BufferError, ValueError)):
        MemoryLease(np.empty((4, 4), "u1")[:, :2])
    with pytest.raises(TypeError, match="pickle"):
        MemoryLease(np.empty(4, "u1")).__reduce__()
    with pytest.raises(ValueError, match="negative"):
        Spares(-1)


def test_a_lease_of_a_lease_ends_with_its_own_arrays():
    outer, inner = Spares(2), Spares(2)
    lease = MemoryLease(MemoryLease(np.empty(100, "u1"), outer), inner)
    array = np.ndarray(25, "f4", lease)[3:]
    del lease
    assert (len(outer), len(inner)) == (0, 0)
    del array
    assert (len(outer), len(inner)) == (0, 1)
    inner.close()
    assert len(outer) == 1
