"""File systems that refuse shared mappings, or all mappings: read as any other."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import MDSWriter
from support.builders import BUILDERS
from support.marks import not_sanitized
from support.processes import environment, run_on_mount

pytestmark = not_sanitized

COUNT = 60
SAMPLES = [
    (f"k{i:04}", {"x": np.arange(40, dtype="f4") + i, "y": np.arange(1 + i % 7)})
    for i in range(COUNT)
]
OPTIONS = {"packed": {"packed": True}}

# Prints the result of each way of reading and each command, without paths.
REPORT = """
import contextlib, hashlib, io, json, os, sqlite3, sys
import numpy as np
import fastshard
from fastshard.cli.entry import main
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.streaming import reader_from_json

root = sys.argv[1]
os.chdir(root)

def digest(views):
    return hashlib.sha256(b"|".join(bytes(view) for view in views)).hexdigest()[:16]

def values(sample):
    return [sample[field] for field in sample]

def read(folder, **options):
    with fastshard.open(folder, **options) as ds:
        first = ds[0].keys()[0]
        batch = np.zeros(1 << 16, "u1")
        order = [7, 3, 20, 41, 5, 1, 58, 9]
        ds.select_fields(first).read_into(order, batch)
        return [
            len(ds),
            digest(view for sample in ds for view in values(sample)),
            digest(view for s in ds.iter(order=order) for view in values(s)),
            digest(view for s in ds.get_many(order) for view in values(s)),
            digest([batch]),
            digest(ds.columns(order, [first])[first]),
        ]

def command(*words):
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    said = out.buffer.getvalue().decode("latin-1") + err.getvalue()
    print(words, code, said.replace(os.getcwd(), "ROOT"))

for name in ("tar", "fsi", "packed", "columnar", "mds", "zstd", "json", "csv"):
    packed = {"packed": True} if name == "packed" else {}
    for mode in ("mmap", "private", "pread")[: int(sys.argv[2])]:
        print(name, mode, read(name, mode=mode, **packed))
    print(name, "bounded", read(name, max_memory="1MB", keep_cache=False, **packed))
for name in ("mds", "zstd"):
    with open(f"{name}/index.json") as file:
        shards = json.load(file)["shards"]
    for shard in shards:
        reader = reader_from_json(name, None, shard)
        print(name, [(s["__key__"], s["x"].sum()) for s in reader])
with ShardedDatasetReader("columnar") as reader:
    print(len(reader), reader.get_sample("k0003")[0]["x"].sum())
    with ShardedDatasetWriter("columnar") as writer:
        writer.add_sample({"x": np.arange(3.0), "y": np.arange(2)}, "new")
    reader.refresh()
    print(len(reader), reader.get_sample("new")[0]["x"].sum())
with ShardedDatasetReader("killed") as reader:
    print(len(reader), reader.get_sample("k0003")[0]["x"].sum())
fastshard.build_index("tar")
with fastshard.open_shard("tar/s-00000.tar") as shard:
    print(shard.index, len(shard))
for name in ("tar", "fsi", "columnar", "mds"):
    for word in ("ls", "stat", "verify"):
        command(word, name)
command("cat", "tar/s-00000.tar", "k0001.x.npy")
command("cat", "mds", "3", "x")
command("index", "--again", "tar")
for name in ("tar", "mds", "columnar"):
    for form in ("tar", "mds", "columnar"):
        command("convert", "--quiet", name, f"{name} as {form}", "--to", form)
        print(len(fastshard.open(f"{name} as {form}")))
command("query", "columnar", "id = 'k0003'")
command("compact", "columnar")
command("compact", "killed")
command("verify", "killed")
print(len(fastshard.open("killed")))
"""

# Refuses to map files as a file system without mmap does; programs are still loaded.
REFUSING = """
import ctypes, errno, platform, struct, sys
number = {"x86_64": 9, "aarch64": 222}[platform.machine()]
load, equal, masked, give = 0x20, 0x15, 0x45, 0x06
program = [
    (load, 0, 0, 0),                # the number of the call
    (equal, 0, 5, number),
    (load, 0, 0, 16 + 8 * 4),       # the descriptor
    (equal, 3, 0, 0xFFFFFFFF),
    (load, 0, 0, 16 + 8 * 3),       # the flags
    (masked, 1, 0, 0x800),          # MAP_DENYWRITE: of the loader of programs
    (give, 0, 0, 0x50000 + errno.ENODEV),
    (give, 0, 0, 0x7FFF0000),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *p) for p in program))
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
whole = Program(len(program), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(whole), 0, 0):
    sys.exit(77)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder with a dataset of each format, and a script that reads them."""
    root = tmp_path_factory.mktemp("datasets")
    for name in ("tar", "packed", "columnar", "mds", "json", "csv"):
        BUILDERS[name].build(root / name, SAMPLES)
    BUILDERS["tar"].build(root / "fsi", SAMPLES)
    for path in (root / "tar").glob("*.fsi"):
        path.unlink()
    fastshard.build_index(root / "fsi")
    columns = {"__key__": "str", "x": "ndarray:float32:40"}
    zstd = {"out": str(root / "zstd"), "size_limit": 6000, "compression": "zstd"}
    with MDSWriter(columns=columns, **zstd) as writer:
        for key, arrays in SAMPLES:
            writer.write({"__key__": key, "x": arrays["x"]})
    kill_writer(root / "killed")
    return root


def kill_writer(folder):
    """Write a columnar dataset whose last changes are in the log of its index."""
    writer = ShardedDatasetWriter(folder)
    writer.add_field("x")
    for key, arrays in SAMPLES:
        writer.add_sample({"x": arrays["x"]}, key)
    writer.flush()
    shutil.copytree(folder, folder.with_name("copy"))
    writer.close()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert (folder / "index.sqlite-wal").stat().st_size > 0


def report(data, tmp_path, modes=3):
    """Return the report on a copy of the data."""
    copy, script = tmp_path / "plain", tmp_path / "report.py"
    shutil.copytree(data, copy)
    script.write_text(REPORT)
    done = subprocess.run(
        [sys.executable, script, copy, str(modes)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("bindfs"), reason="bindfs is not installed")
def test_a_mount_without_shared_mappings_reads_as_any_other(data, tmp_path):
    source, mounted = tmp_path / "source", tmp_path / "mounted"
    shutil.copytree(data, source)
    mounted.mkdir()
    plain = report(data, tmp_path)
    command = f"{sys.executable} {tmp_path / 'report.py'} {mounted} 3"
    done = run_on_mount(f"bindfs -o direct_io {source} {mounted}", command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == plain.splitlines()


def test_files_that_cannot_be_mapped_are_read_with_pread(data, tmp_path):
    copy = tmp_path / "unmapped"
    shutil.copytree(data, copy)
    plain = report(data, tmp_path, 1)
    script = tmp_path / "refusing.py"
    script.write_text(REFUSING + REPORT)
    done = subprocess.run(
        [sys.executable, script, copy, "1"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip("system calls cannot be filtered here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == plain.splitlines()


CHANGED = """
import os, sys
import fastshard

path = sys.argv[1]
shard = fastshard.open_shard(path, index="none", check_size=True)
data, at = bytes(shard[3]), int(shard.offsets[3])
with open(path, "r+b") as file:
    file.seek(at)
    file.write(b"changed")
with fastshard.open_shard(path, index="none") as other:
    print(bytes(other[3]) == b"changed" + data[7:])
os.truncate(path, 1024)
try:
    shard[3]
except fastshard.FormatError as error:
    print(error.reason)
"""


@pytest.mark.skipif(not shutil.which("bindfs"), reason="bindfs is not installed")
def test_a_private_mapping_of_a_changed_file(data, tmp_path):
    source, mounted, script = (
        tmp_path / name for name in ("source", "mounted", "s.py")
    )
    shutil.copytree(data / "tar", source)
    mounted.mkdir()
    script.write_text(CHANGED)
    command = f"{sys.executable} {script} {mounted}/s-00000.tar"
    done = run_on_mount(f"bindfs -o direct_io {source} {mounted}", command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\nthe file was truncated after it was mapped\n"
