"""Fuzzer of the reader of binary indexes: no read may leave the shard.

Not part of the suite. With atheris (``pip install atheris``), from the root::

    python tests/fuzz/fuzz_fsi.py [-max_total_time=3600]

The input is a list of edits of a valid index, ten bytes each: a position of two
bytes, then eight bytes to write there. The compiled core reports no coverage, so the
edits are random. Without atheris, or with ``--seeds FIRST LAST``, indexes damaged by
seeded generators are read instead::

    python tests/fuzz/fuzz_fsi.py --seeds 0 1000

A build with sanitizers (see ``tests/sanitize.sh``) finds more.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fastshard
from fastshard.index.binary import HEADER as FSI_HEADER
from support.index.binary import (
    MEMBERS,
    iterate_damaged,
    use_shard,
    with_right_checksums,
)
from support.tars import write_tar


class Target:
    """Shard under test and the bytes of its valid index."""

    def __init__(self, folder: Path) -> None:
        self.tar = write_tar(folder / "t.tar", MEMBERS)
        self.index = self.tar.with_suffix(".fsi")
        with fastshard.open_shard(self.tar) as shard:
            shard.save_index(hashes=True)
        self.valid = self.index.read_bytes()

    def try_edits(self, edits: bytes) -> None:
        """Apply edits to the valid index and read by the result."""
        raw = bytearray(self.valid)
        for i in range(0, len(edits) - 9, 10):
            at = int.from_bytes(edits[i : i + 2], "little") % (len(raw) - 8)
            raw[at : at + 8] = edits[i + 2 : i + 10]
        self.try_one(bytes(raw))

    def try_one(self, raw: bytes) -> None:
        """Read by an index as given, and again with valid checksums."""
        for text in (raw, with_right_checksums(raw, FSI_HEADER)):
            self.index.write_bytes(text)
            use_shard(self.tar)


def main() -> None:
    warnings.simplefilter("ignore", fastshard.StaleIndexWarning)
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        if "--seeds" in sys.argv or importlib.util.find_spec("atheris") is None:
            numbers = [int(text) for text in sys.argv[2:4]] or [0, 10]
            for seed in range(*numbers):
                for raw in iterate_damaged(target.valid, FSI_HEADER, seed, 500):
                    target.try_one(raw)
            print("no read outside the shard")
            return
        import atheris

        atheris.Setup([*sys.argv, "-len_control=0"], target.try_edits)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
