"""Epochs through outages that take too long for the suite.

    python tests/outages.py [SECONDS...]

A server stops after 468 of 2,000 samples and returns after some seconds (1, 5 and 20):
every sample is right, once, in order. An outage that exceeds the timeout skips only the
samples due during it.
"""

import sys
import tempfile
import time
from pathlib import Path

import fastshard
from support.servers.http import Server
from support.tars import write_tar

COUNT, DIES = 2000, 468
EACH = 20_000  # bytes


def body(i: int) -> bytes:
    return i.to_bytes(4, "little") * (EACH // 4)


def epoch(files: dict[str, bytes], seconds: float, timeout: float) -> int:
    """Read all samples through an outage; return how many were skipped."""
    with Server(files) as server:
        ds = fastshard.open(server.url + "/", timeout=timeout)
        begun, timer, received = time.monotonic(), None, []
        items = ds.iter(on_error="skip")
        for sample in items:
            i = int(sample.key)
            assert sample["bin"] == body(i)
            received.append(i)
            if len(received) == DIES:
                timer = server.leave_for(seconds)
        assert timer is not None
        timer.join()
        took = time.monotonic() - begun
    assert received == sorted(set(received))
    assert len(received) + items.skipped == COUNT
    print(f"away {seconds:g} s of {timeout:g}: skipped {items.skipped}, {took:.1f} s")
    return items.skipped


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for k in range(4):
            span = range(k * COUNT // 4, (k + 1) * COUNT // 4)
            members = {f"{i:06}.bin": body(i) for i in span}
            write_tar(Path(folder, f"{k}.tar"), members)
        fastshard.build_index(folder)
        files = {f"/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}
    for seconds in map(float, sys.argv[1:] or ("1", "5", "20")):
        assert epoch(files, seconds, 60.0) == 0
        if seconds > 2:  # a failing sample takes 1 s, 0.2 s for its bytes, and pauses
            assert epoch(files, seconds, 1.0) <= seconds + 1


if __name__ == "__main__":
    main()
