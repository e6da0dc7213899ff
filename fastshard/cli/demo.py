"""Demonstration: write shards and a dataset, read them in every way, time the reads."""

from __future__ import annotations

import io
import json
import os
import pickle
import platform
import random
import struct
import tarfile
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fastshard._util.processes.temporaries import temporary_folder
from fastshard._util.progress import make_bar
from fastshard._util.terminal import paint, write_line, write_note
from fastshard.dataset.build_index import build_index
from fastshard.dataset.open import open as open_dataset
from fastshard.formats.tar import open_shard
from fastshard.formats.writer import ShardWriter

SAMPLES = 2000
ROUNDS = 5

Members = dict[str, bytes]


def encode_png(pixels: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bytes:
    """Encode a grey image [height, width] as PNG (ISO/IEC 15948)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 1))
        + chunk(b"IEND", b"")
    )


def encode_npy(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """Encode an array as .npy."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def make_images(count: int) -> Members:
    """Return an image and its caption for each sample."""
    numbers = np.random.default_rng(0)
    members = {}
    for i in range(count):
        pixels = numbers.integers(0, 256, (64, 64), dtype=np.uint8)
        members[f"{i:06d}.png"] = encode_png(pixels)
        members[f"{i:06d}.json"] = json.dumps({"caption": f"image {i}"}).encode()
    return members


def make_arrays(count: int) -> Members:
    """Return a vector and its class for each sample."""
    numbers = np.random.default_rng(1)
    members = {}
    for i in range(count):
        members[f"{i:06d}.npy"] = encode_npy(numbers.random(512, dtype=np.float32))
        members[f"{i:06d}.cls"] = str(i % 10).encode()
    return members


def write_tar(path: Path, members: Members, *, mtime: float, form: int) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = mtime  # a float, as WebDataset writes it
            tar.addfile(member, io.BytesIO(data))


def expect(right: bool, what: str) -> None:
    """Exit at a wrong read; unlike assert, also under ``python -O``."""
    if not right:
        raise SystemExit(f"fastshard demo: wrong: {what}")


def check_reads(path: Path, members: Members) -> int:
    """Read a shard in every way, and return the number of correct reads."""
    right = 0
    for mode in ("mmap", "private", "pread"):
        with open_shard(path, mode=mode) as shard:
            expect(list(shard.names) == list(members), f"names, {mode}")
            for i, (name, data) in enumerate(members.items()):
                same = shard[i] == shard[name] == shard.read(i) == data
                expect(same, f"{name}, {mode}")
                right += 3
            for view, data in zip(shard, members.values(), strict=True):
                expect(view == data, f"iteration, {mode}")
                right += 1
            for sample in shard.samples:
                for field in sample:
                    name = f"{sample.key}.{field}"
                    expect(sample[field] == members[name], f"sample {name}, {mode}")
                    right += 1
            again = pickle.loads(pickle.dumps(shard))
            expect(list(again) == list(shard), f"pickled, {mode}")
            right += len(again)
            view = shard[0]
        first = next(iter(members.values()))
        expect(view == first, f"a view that outlives its shard, {mode}")
    return right


def check_arrays(path: Path, members: Members) -> int:
    """Compare every array of a shard with `numpy.load`."""
    with open_shard(path) as shard:
        for sample in shard.samples:
            expected = np.load(io.BytesIO(members[f"{sample.key}.npy"]))
            expect(np.array_equal(sample.array("npy"), expected), sample.key)
            expect(int(sample.text("cls")) == int(sample.key) % 10, sample.key)
        return len(shard.samples)


def measure_speed(read: Callable[[], int]) -> float:
    """Return members per second of a function that returns their number; best of 5."""
    best = 0.0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        count = read()
        best = max(best, count / (time.perf_counter() - start))
    return best


def measure_shard(path: Path, order: list[str]) -> dict[str, tuple[float, float]]:
    """Return members per second of fastshard and of tarfile, by kind of read."""

    def open_fastshard() -> int:
        with open_shard(path) as shard:
            return len(shard)

    def open_tarfile() -> int:
        with tarfile.open(path) as tar:
            return len(tar.getnames())

    with open_shard(path) as shard, tarfile.open(path) as tar:
        infos = {info.name: info for info in tar}

        def view_fastshard() -> int:
            for name in order:
                shard[name]
            return len(order)

        def read_fastshard() -> int:
            for name in order:
                shard.read(name)
            return len(order)

        def read_tarfile() -> int:
            for name in order:
                file = tar.extractfile(infos[name])
                if file is not None:
                    file.read()
            return len(order)

        read_by_tarfile = measure_speed(read_tarfile)
        return {
            "open": (measure_speed(open_fastshard), measure_speed(open_tarfile)),
            "read by name, copied": (measure_speed(read_fastshard), read_by_tarfile),
            "view by name, no copy": (measure_speed(view_fastshard), read_by_tarfile),
        }


def write_dataset(folder: Path) -> list[Members]:
    """Write a dataset of several shards, and return its samples."""
    numbers = np.random.default_rng(2)
    samples = []
    with ShardWriter(folder / "train-{:04d}.tar", max_count=500) as writer:
        for i in range(SAMPLES):
            vector = numbers.random(64, dtype=np.float32)
            sample = {"npy": encode_npy(vector), "cls": str(i % 10).encode()}
            writer.write({"__key__": f"{i:06d}", **sample})
            samples.append(sample)
    return samples


def check_dataset(folder: Path, samples: list[Members]) -> int:
    """Read a dataset by position, by key, in batches and decoded."""
    right = 0
    with open_dataset(folder) as ds:
        expect(len(ds) == len(samples), "samples counted")
        for i, stored in enumerate(samples):
            for sample in (ds[i], ds[f"{i:06d}"]):
                read = {field: bytes(sample[field]) for field in sample}
                expect(read == stored, f"sample {i}")
                right += len(read)
        batch = ds.get_many(range(0, len(ds), 7))
        for sample, stored in zip(batch, samples[::7], strict=True):
            expect(sample["npy"] == stored["npy"], "batch")
            right += 1
        decoded = ds[::-1].decode("cls").map(lambda values: values["cls"])
        expect(list(decoded) == [i % 10 for i in range(len(ds))][::-1], "decoded")
        right += len(decoded)
        expect(ds.verify() == [], "faults in a sound dataset")
    return right


def measure_opening(folder: Path) -> dict[str, float]:
    """Return the seconds to open and count a dataset, with and without indexes."""

    def seconds(**options: str) -> float:
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            with open_dataset(folder, **options) as ds:  # type: ignore[arg-type]
                len(ds)
            best = min(best, time.perf_counter() - start)
        return best

    figures = {"by a scan": seconds(index="none"), "an index a shard": seconds()}
    build_index(folder)
    return figures | {"dataset.fsi": seconds()}


class Demo:
    """The demonstration in a folder, and its figures.

    A wrong read exits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples = 0
        self.reads = 0
        self.shards: list[dict[str, Any]] = []
        self.opening: dict[str, float] = {}

    def steps(self) -> list[Callable[[], None]]:
        """Return the parts, of about equal duration."""
        images, arrays = make_images(SAMPLES), make_arrays(SAMPLES)
        pax, ustar = tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT
        return [
            lambda: self.check_shard("images-0000.tar", images, 1.5, pax),
            lambda: self.measure("images-0000.tar", images),
            lambda: self.check_shard("arrays-0000.tar", arrays, 1, ustar),
            lambda: self.measure("arrays-0000.tar", arrays),
            self.check_dataset,
        ]

    def check_shard(self, name: str, members: Members, mtime: float, form: int) -> None:
        path = self.folder / name
        write_tar(path, members, mtime=mtime, form=form)
        self.reads += check_reads(path, members)
        if name.startswith("arrays"):
            self.reads += check_arrays(path, members)

    def measure(self, name: str, members: Members) -> None:
        path = self.folder / name
        order = list(members)
        random.Random(0).shuffle(order)
        self.shards.append(
            {
                "shard": name,
                "members": len(members),
                "bytes": path.stat().st_size,
                "members_per_second": {
                    what: {"fastshard": round(ours), "tarfile": round(theirs)}
                    for what, (ours, theirs) in measure_shard(path, order).items()
                },
            }
        )

    def check_dataset(self) -> None:
        data = self.folder / "dataset"
        data.mkdir()
        samples = write_dataset(data)
        self.reads += check_dataset(data, samples)
        self.samples = len(samples)
        self.opening = measure_opening(data)

    def figures(self) -> dict[str, Any]:
        """Return the figures as ``--json`` prints them."""
        return {
            "fastshard": version("fastshard"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "reads": self.reads,
            "shards": self.shards,
            "dataset": {"samples": self.samples, "opened_in_seconds": self.opening},
        }

    def print(self) -> None:
        figures = self.figures()
        write_line(
            f"fastshard {figures['fastshard']}, Python {figures['python']}, "
            f"NumPy {figures['numpy']}, {os.cpu_count()} processors"
        )
        write_line(f"{self.reads:,} reads in every way, all equal to what was stored")
        write_line()
        head = f"{'members per second, page cache warm':<38}{'fastshard':>12}"
        write_line(paint(f"{head}{'tarfile':>12}", "bold"))
        for shard in self.shards:
            size = f"{shard['members']:,} members, {shard['bytes'] / 1e6:.0f} MB"
            write_line(f"{shard['shard']}, {size}")
            for what, speed in shard["members_per_second"].items():
                ours, theirs = speed["fastshard"], speed["tarfile"]
                times = paint(f"{ours / theirs:>8,.0f} times", "good")
                write_line(f"  {what:<36}{ours:>12,}{theirs:>12,}", times, sep="")
        write_line()
        head = f"a dataset of {self.samples:,} samples in 4 shards"
        write_line(paint(f"{head:<38}{'opened in':>12}", "bold"))
        for what, seconds in self.opening.items():
            write_line(f"  {what:<36}{seconds * 1e3:>9.2f} ms")


def run_demo(out: str | None, as_json: bool) -> int:
    """Run the demonstration in a new directory, or in a temporary one."""
    if out is not None:
        Path(out).mkdir(parents=True)
        folder: Any = nullcontext(out)
    else:
        folder = temporary_folder("fastshard-demo")
    with folder as name:
        demo = Demo(Path(name))
        with make_bar(None, "demo", unit=" steps") as bar:
            steps = demo.steps()
            bar.reset(len(steps))
            for step in steps:
                step()
                bar.update()
    if as_json:
        write_line(json.dumps(demo.figures()))
        return 0
    demo.print()
    if out is not None:
        write_note()
        write_note(f"the shards are in {out}: fastshard stat {out}/images-0000.tar")
    return 0
