"""Demonstration: write shards and a dataset, read them in every way, time the reads."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastshard._util.terminal import write_line
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


def print_speed(path: Path, order: list[str]) -> None:
    """Print members per second of fastshard and of tarfile on one file."""

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

        for what, ours, theirs in (
            ("open", open_fastshard, open_tarfile),
            ("read by name, copied", read_fastshard, read_tarfile),
            ("view by name, no copy", view_fastshard, read_tarfile),
        ):
            a, b = measure_speed(ours), measure_speed(theirs)
            write_line(
                f"  {what:<24} {a:>12,.0f} members/s, "
                f"tarfile {b:>9,.0f}: {a / b:,.0f} times"
            )


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


def print_opening(folder: Path) -> None:
    """Print the time to open and count a dataset, with and without indexes."""

    def seconds(**options: str) -> float:
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            with open_dataset(folder, **options) as ds:  # type: ignore[arg-type]
                len(ds)
            best = min(best, time.perf_counter() - start)
        return best

    without = seconds(index="none")
    beside = seconds()
    build_index(folder)
    whole = seconds()
    write_line(
        f"  opened and counted in {without * 1e3:.2f} ms by a scan, "
        f"{beside * 1e3:.2f} with an index a shard, {whole * 1e3:.2f} with dataset.fsi"
    )


def run_demo() -> int:
    """Run the demonstration, and exit at a wrong read."""
    with tempfile.TemporaryDirectory(prefix="fastshard-demo-") as folder:
        write_line("Two shards, made with tarfile; the page cache is warm.")
        for name, make, form, mtime in (
            ("images-0000.tar", make_images, tarfile.PAX_FORMAT, 1.5),
            ("arrays-0000.tar", make_arrays, tarfile.USTAR_FORMAT, 1),
        ):
            members = make(SAMPLES)
            path = Path(folder, name)
            write_tar(path, members, mtime=mtime, form=form)
            right = check_reads(path, members)
            if name.startswith("arrays"):
                right += check_arrays(path, members)
            kind = "pax" if form == tarfile.PAX_FORMAT else "ustar"
            size = path.stat().st_size
            write_line(f"{name} ({kind}): {len(members):,} members, {size:,} bytes")
            write_line(f"  {right:,} reads, all equal to what was stored")
            order = list(members)
            random.Random(0).shuffle(order)
            print_speed(path, order)
        data = Path(folder, "dataset")
        data.mkdir()
        samples = write_dataset(data)
        right = check_dataset(data, samples)
        shards = len(list(data.glob("*.tar")))
        write_line(
            f"a dataset: {len(samples):,} samples, {shards} shards, written and indexed"
        )
        write_line(f"  {right:,} reads, all equal to what was stored")
        print_opening(data)
    return 0
