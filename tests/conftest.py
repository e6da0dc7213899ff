"""Builders of shards, and what tests share."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter

from originals import FIELDS, OriginalWriter, arrays_of

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared
hypothesis.settings.load_profile("untimed")

pytest.register_assert_rewrite("columnarchecks")

# A skip for any other reason fails a run under FASTSHARD_STRICT_SKIPS=1.
ALLOWED_SKIPS = (
    "torch has no wheel for this Python",
    "no wids, or not the torch it needs",
    "not under a sanitizer",
    "mounting is not allowed here",
    "this Python has a GIL",
    "no grain for this Python",
    "no jax for this Python",
    "no ray for this Python",
    "no source tree",
    "no trio for this Python",
    "needs openssl",
)

SANITIZED = os.environ.get("FASTSHARD_SANITIZED") == "1"

not_sanitized = pytest.mark.skipif(SANITIZED, reason="not under a sanitizer")

# GCC's AddressSanitizer does not guard its allocator over a fork: where another
# thread is inside malloc at that moment, the child waits for it for ever.
forks_beside_threads = pytest.mark.skipif(
    SANITIZED, reason="not under a sanitizer: threads beside a fork"
)

MakeTar = Callable[..., Path]
MakeOriginal = Callable[..., OriginalWriter]


os.environ["FASTSHARD_CACHE"] = ""  # no test writes into the user's


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped what it should not have."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FASTSHARD_STRICT_SKIPS") != "1" or reporter is None:
        return
    for report in reporter.getreports("skipped"):
        if not any(allowed in str(report.longrepr) for allowed in ALLOWED_SKIPS):
            reporter.write_line(f"not on the list of skips: {report.longrepr}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def in_threads(task: Callable[[int], object], count: int = 4) -> None:
    """Run ``task(k)`` in a thread for each k; raise what the first one raised."""
    wrong: list[BaseException] = []

    def run(k: int) -> None:
        try:
            task(k)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def write_tar(
    path: Path,
    members: Mapping[str, bytes],
    *,
    form: int = tarfile.USTAR_FORMAT,
    mtime: float = 1,
    **options: object,
) -> Path:
    """Write a tar with the standard library; a float mtime makes pax headers."""
    with tarfile.open(path, "w", format=form, **options) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = mtime
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def make_tar(tmp_path: Path) -> MakeTar:
    """Make ``shard.tar`` (or another name) of members given as a dict."""

    def make(members: Mapping[str, bytes], name: str = "shard.tar", **options) -> Path:
        return write_tar(tmp_path / name, members, **options)

    return make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a columnar dataset may be made."""
    return tmp_path / "data"


@pytest.fixture
def writer(root: Path) -> Iterator[ShardedDatasetWriter]:
    """A writer of a new columnar dataset: two fields, four samples to a shard."""
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_fields(["a", "b"])
        yield writer


@pytest.fixture
def make_original(tmp_path: Path) -> Iterator[MakeOriginal]:
    """Open a writer of the original format on ``data`` (or another name).

    Each call is a session of its own; those not closed are closed at the end.
    """
    writers = []

    def make(name: str = "data", **options) -> OriginalWriter:
        writers.append(OriginalWriter(tmp_path / name, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


@pytest.fixture
def several(make_original: MakeOriginal) -> tuple[Path, dict[str, dict]]:
    """A dataset of three sessions of seven samples, five to a shard."""
    put = {}
    for session in range(3):
        with make_original(samples_per_shard=5) as writer:
            writer.add_fields(FIELDS)
            for i in range(7 * session, 7 * session + 7):
                sample_id = writer.add_sample(arrays_of(i), metadata={"n": i})
                put[sample_id] = arrays_of(i)
    return writer.root, put


@pytest.fixture
def members() -> dict[str, bytes]:
    """Three samples of two fields, and a member that is no sample."""
    return {
        "000.jpg": b"\xff\xd8" + bytes(range(256)) * 3,
        "000.json": b'{"caption": "one"}',
        "001.jpg": b"",
        "001.json": b'{"caption": "two"}',
        "README": b"no sample",
        "sub/002.jpg": b"x" * 512,
        "sub/002.json": b"[]",
    }


@pytest.fixture
def shard_path(make_tar: MakeTar, members: dict[str, bytes]) -> Path:
    return make_tar(members)


@pytest.fixture
def opened(tmp_path):
    """Open a tar made of blocks."""

    def open_blocks(*blocks, **options):
        path = tmp_path / "hand.tar"
        path.write_bytes(b"".join(blocks))
        return fastshard.open_shard(path, **options)

    return open_blocks


def listed(path: Path, **options: object) -> list[tuple[str, int, int]]:
    """What fastshard says a shard holds: names, offsets, sizes."""
    with fastshard.open_shard(path, **options) as shard:
        columns = shard.names, shard.offsets.tolist(), shard.sizes.tolist()
        return list(zip(*columns, strict=True))


def listed_by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    """The same by the standard library."""
    with tarfile.open(path, "r:") as tar:
        return [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]


def needs(program: str) -> str:
    """Return a program's path, or skip the test."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def mappings_of(path: Path) -> int:
    """How often a file is mapped into this process."""
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)


def write_numbers(folder: Path, count: int, *, first: int = 0, per: int = 10) -> Path:
    """Write samples ``txt`` (their number), ``npy`` and ``cls``; return the folder."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    with fastshard.ShardWriter(folder / "n-{:03d}.tar", max_count=per) as writer:
        for i in range(first, first + count):
            array = np.full((2, 3), i, np.float32)
            key = f"{i - first:06d}"
            writer.write({"__key__": key, "txt": str(i), "npy": array, "cls": i})
    return folder


@pytest.fixture
def loopback(monkeypatch, tmp_path):
    """Connect to this machine only, and know no token of whoever runs the tests."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    connect = socket.socket.connect

    def guarded(self, address):
        assert address[0] == "127.0.0.1"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
