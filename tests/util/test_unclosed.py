"""Writers that are not closed: one line on stderr for each, and nothing else."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from fastshard import ShardWriter, UnclosedWriterWarning
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.streaming import CSVWriter, JointWriter, JSONWriter, MDSWriter
from support.inside.columnar import transaction_of
from support.processes import environment

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

WRITERS = """
import os, signal, sys, threading
import numpy as np
from fastshard import ShardWriter
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

COLUMNS = {"a": "int"}

def write_all(folder, count=1000):
    \"\"\"Return open writers with samples, one of each kind.\"\"\"
    writers = [ShardWriter(f"{folder}/tar/{{}}.tar", max_count=1000)]
    for i in range(1000 + count):
        writers[0].write({"__key__": f"{i}", "cls": i})
    for kind in MDSWriter, JSONWriter, CSVWriter, TSVWriter:
        out = f"{folder}/{kind.__name__}"
        writers.append(kind(columns=COLUMNS, out=out, size_limit=4000))
    writers.append(XSVWriter(columns=COLUMNS, separator="|", out=f"{folder}/XSVWriter"))
    for writer in writers[1:]:
        for i in range(count):
            writer.write({"a": i})
    columnar = ShardedDatasetWriter(f"{folder}/columnar")
    columnar.add_fields(["a", "b"])
    for i in range(count):
        columnar.add_sample({"a": np.arange(3)}, f"s{i:04}")
    handle = columnar.open_shard("b")
    for i in range(count):
        handle.add_sample(f"s{i:04}", np.arange(3))
    return [*writers, columnar, handle]

folder = sys.argv[1]
"""

LINES = """
JSONWriter of {}/JSONWriter was not closed: {} (no index.json); call finish()
MDSWriter of {}/MDSWriter was not closed: {} (no index.json); call finish()
CSVWriter of {}/CSVWriter was not closed: {} (no index.json); call finish()
TSVWriter of {}/TSVWriter was not closed: {} (no index.json); call finish()
XSVWriter of {}/XSVWriter was not closed: {} (no index.json); call finish()
ShardWriter of {}/tar/1.tar was not closed: {}; call close()
ShardHandle of {}/columnar/b_shards/shard_0000.tar was not closed: {}; call close()
"""


def run(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script after `WRITERS`; options are of Python."""
    script = folder / "script.py"
    script.write_text(WRITERS + code)
    command = [sys.executable, *options, script, folder / "out"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment()
    )


def expected_lines(folder: Path, samples: str = "1,000 samples are") -> list[str]:
    """Return the lines of all writers that lose samples, sorted."""
    out, loss = folder / "out", f"{samples} not stored"
    lines = LINES.strip().splitlines()
    return sorted(f"{line.format(out, loss)} or use `with`" for line in lines)


def warned(stderr: str) -> list[str]:
    """Return the lines of warnings, sorted; other lines must not be warnings."""
    start = "<fastshard>:0: UnclosedWriterWarning: "
    lines = stderr.splitlines()
    found = [line.removeprefix(start) for line in lines if line.startswith(start)]
    assert stderr.count("Warning") == len(found), stderr
    return sorted(found)


ENDS = {
    "end of the script": ("writers = write_all(folder)", 0),
    "sys.exit": ("writers = write_all(folder); sys.exit(0)", 0),
    "an exception": ("writers = write_all(folder); 1 / 0", 1),
    "an exception in a function": ("def f():\n x = write_all(folder); 1 / 0\nf()", 1),
    "an interrupt": (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "writers = write_all(folder); signal.raise_signal(signal.SIGINT)",
        -signal.SIGINT,
    ),
    "a function that returns": ("def f():\n x = write_all(folder)\nf()", 0),
    "a cycle": ("x = write_all(folder); x.append(x); del x", 0),
    "a thread": (
        "def f(): global x; x = write_all(folder)\n"
        "t = threading.Thread(target=f); t.start(); t.join()",
        0,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_one_line_for_each_writer(tmp_path, end):
    code, status = ENDS[end]
    done = run(tmp_path, code)
    assert done.returncode == status, done.stderr
    assert warned(done.stderr) == expected_lines(tmp_path)
    if status == 0:
        assert len(done.stderr.splitlines()) == len(expected_lines(tmp_path))
    with ShardedDatasetReader(tmp_path / "out/columnar") as reader:
        assert len(reader) == 1000  # each sample is there completely


def test_development_mode_adds_no_second_line(tmp_path):
    done = run(tmp_path, "x = write_all(folder, 1)", "-X", "dev")
    lines = [line for line in done.stderr.splitlines() if "not stored" in line]
    assert warned("\n".join(lines)) == expected_lines(tmp_path, "1 sample is")
    others = done.stderr.count("ResourceWarning: the writer of")
    assert others == 1  # the columnar one, which stores its samples


def test_closed_and_empty_writers_are_silent(tmp_path):
    code = """
for writer in reversed(write_all(folder + "/a")):
    getattr(writer, "finish", getattr(writer, "close", None))()
empty = [ShardWriter(folder + "/{}.tar"), MDSWriter(columns=COLUMNS, out=folder + "/m")]
try:
    ShardWriter("s3://bucket/{}.tar")
except ValueError:
    pass
"""
    done = run(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")


@forks
@pytest.mark.parametrize(
    "child", ["sys.exit(0)", "writers.clear(); os._exit(0)", "os._exit(0)"]
)
def test_a_forked_child_does_not_report_its_parent_s_writers(tmp_path, child):
    code = f"""
writers = write_all(folder)
pid = os.fork()
if pid == 0:
    {child}
assert os.waitpid(pid, 0)[1] == 0
"""
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert warned(done.stderr) == expected_lines(tmp_path)


@pytest.mark.parametrize("method", [pytest.param("fork", marks=forks), "spawn"])
def test_a_worker_process_reports_its_own_writers(tmp_path, method):
    code = f"""
import multiprocessing
def work():
    global kept
    kept = write_all(folder)
if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert warned(done.stderr) == expected_lines(tmp_path)
    with ShardedDatasetReader(tmp_path / "out/columnar") as reader:
        assert len(reader) == 1000


def drop(kept: list[object]) -> None:
    """Drop writers that nothing else refers to."""
    kept.clear()
    gc.collect()


def make_writers(folder: Path):
    """Return open writers of four kinds, each with a sample."""
    tar = ShardWriter(folder / "{}.tar")
    tar.write({"__key__": "a", "cls": 1})
    rows = [
        kind(columns={"a": "int"}, out=folder / kind.__name__)
        for kind in (MDSWriter, JSONWriter, CSVWriter)
    ]
    for writer in rows:
        writer.write({"a": 1})
    return [tar, *rows]


def end(writer, kind):
    with writer:
        raise kind


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exit_within_the_context_is_reported_once(tmp_path, kind):
    for writer in make_writers(tmp_path):
        match = rf"{type(writer).__name__} of .* was ended by {kind.__name__}: 1 sample"
        with pytest.warns(UnclosedWriterWarning, match=match), pytest.raises(kind):
            end(writer, kind)
    del writer
    gc.collect()


def test_an_exception_within_the_context_is_not_reported_again(tmp_path):
    for writer in make_writers(tmp_path):
        with pytest.raises(ZeroDivisionError):
            end(writer, ZeroDivisionError)
    del writer
    gc.collect()


def test_a_failed_end_of_the_context_is_not_reported_again(tmp_path):
    writer = MDSWriter(columns={"a": "int"}, out=tmp_path)
    writer.write({"a": 1})
    writer.flush_shard = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError), writer:
        pass
    del writer
    gc.collect()


def test_an_exit_ends_the_writer_also_where_the_warning_is_an_error(tmp_path):
    writer = ShardWriter(tmp_path / "{}.tar")
    writer.write({"__key__": "a", "cls": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnclosedWriterWarning, match=re.escape(str(tmp_path))):
            end(writer, SystemExit)
    assert os.listdir(tmp_path) == []


def test_samples_of_finished_shards_without_an_index_are_counted(tmp_path):
    class LineWriter(JointWriter):
        format = "line"

        def encode_sample(self, sample):
            return b"x" * 10

        def encode_joint_shard(self):
            return b"".join(self.new_samples)

    kept = [LineWriter(out=tmp_path, size_limit=100)]
    for _ in range(25):
        kept[0].write({})
    assert len(kept[0].shards) == 2
    with pytest.warns(UnclosedWriterWarning, match="LineWriter .* 25 samples are not"):
        drop(kept)


def test_a_columnar_writer_that_cannot_store_counts_since_its_last_flush(tmp_path):
    writer = ShardedDatasetWriter(tmp_path / "data")
    writer.add_field("a")
    for i in range(7):
        writer.add_sample({"a": np.arange(i)})
    writer.flush()
    for i in range(5):
        writer.add_sample({"a": np.arange(i)})
    writer.conn.rollback()
    for i in range(3):
        writer.add_sample({"a": np.arange(i)})
    writer.update_sample("sample_000000000001", {"a": np.zeros(3)})
    transaction_of(writer).sync_queue.finish = full_disk
    kept = [writer]
    del writer
    match = r"ShardedDatasetWriter of .*/data was not closed: 4 samples are not stored "
    with pytest.warns(UnclosedWriterWarning, match=match + r"\(\[Errno 28\] full\)"):
        drop(kept)
    with ShardedDatasetReader(tmp_path / "data") as reader:
        assert len(reader) == 7


def full_disk():
    raise OSError(28, "full")


def test_a_shard_handle_that_its_writer_cut_off_is_reported(tmp_path):
    with ShardedDatasetWriter(tmp_path / "data") as writer:
        writer.add_field("a")
        discarded = writer.open_shard("a")
        discarded.add_sample("y", np.arange(3))
        discarded.discard()
        del discarded
        kept = [writer.open_shard("a")]
        kept[0].add_sample("x", np.arange(3))
    with pytest.warns(UnclosedWriterWarning, match="ShardHandle of .* 1 sample is not"):
        drop(kept)
