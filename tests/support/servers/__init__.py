"""HTTP servers of the tests, with faults on demand, and plain clients."""
