"""Crash tests of columnar writers: kills, power losses, errors of the disk, readers.

    python tests/columnar_crash.py [MINUTES] [SEED]
    python tests/columnar_crash.py kills|losses|errors|reading SECONDS SEED
    python tests/columnar_crash.py kills|losses|errors|reading 500rounds SEED
    python tests/columnar_crash.py ... packed

A child process works on a dataset and reports each operation that it begins, and each
that the writer has acknowledged. Then the dataset is read without fastshard and with
it. It must hold the last acknowledged state or that after a later operation, and a new
writer must be able to continue it. After that writer no file is left that no row
needs. Readers run in the child, between compactions, and in processes beside it. Every
other round packs arrays, the first if the seed is odd; with ``packed``, each writer of
each round does. In half of the rounds rows wait after the first one of a transaction.
The last line of the output counts what was tested. Requires Linux and a C compiler.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import faulthandler
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastshard.columnar.write import pending_rows
from support.columnar import found as contents
from support.columnar import model, power_loss
from support.columnar.found import Broken, need
from support.columnar.model import State, Work
from support.columnar.readers import code_of, forked, reading
from support.paths import TESTS

WATCHED = TESTS / "support" / "columnar" / "watched.c"
ONCE, FROM_THEN_ON, SHORT, KILL_BEFORE, KILL_AFTER = range(5)  # enum how of watched.c
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fast syncs
TIMEOUT = 30  # seconds after which a child counts as hanging

FAULTS = [
    (errno.EIO, ONCE),
    (errno.ENOSPC, FROM_THEN_ON),
    (errno.ENOSPC, SHORT),
    (errno.ENOSPC, ONCE),
]


def preload(folder: Path) -> str:
    """Compile watched.c; return the path of the library to preload."""
    target = folder / "watched.so"
    compiler = os.environ.get("CC", "cc").split()
    options = ["-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-pthread"]
    command = [*compiler, *options, "-o", str(target), str(WATCHED)]
    subprocess.run(command, check=True)
    return str(target)


class Trial(NamedTuple):
    """Result of a child."""

    reports: list[list]
    journal: bytes
    status: int  # exit code; negative: the signal that ended it

    @property
    def steps(self) -> int:
        return next((r[1] for r in self.reports if r[0] == "steps"), 0)


class Child:
    """Forked process that works on a dataset."""

    def __init__(self, root: Path, seed: str, start: State, *, count: int) -> None:
        self.root, self.seed, self.start, self.count = root, seed, start, count
        self.library = ctypes.CDLL(None)
        self.library.watched_steps.restype = ctypes.c_long
        self.library.watched_failed.restype = ctypes.c_long

    def run(
        self, *, journal=False, at=0, code=0, how=ONCE, seconds: float | None = None
    ) -> Trial:
        """Fork a child and wait for it; kill it after `seconds`, if given.

        At call number `at` (0: none) that changes a file, fail with errno `code`, or
        kill the child, as `how` says.
        """
        self.reports = os.memfd_create("reports")
        self.journal = os.memfd_create("journal") if journal else -1
        child = os.fork()
        if child == 0:
            self._work(at, code, how)
        status = wait(child, seconds)
        need(status in (0, -signal.SIGKILL), f"a child ended with {status}")
        reports = read_back(self.reports).split(b"\n")[:-1]
        log = read_back(self.journal) if journal else b""
        return Trial([json.loads(line) for line in reports], log, status)

    def report(self, *fields: object) -> None:
        line = json.dumps(fields).encode() + b"\n"
        os.write(self.reports, line)
        if self.journal >= 0:
            self.library.watched_note(line, ctypes.c_long(len(line)))

    def _work(self, at: int, code: int, how: int) -> None:
        """Work until the end or a fault, and exit without any cleanup."""
        faulthandler.dump_traceback_later(TIMEOUT - 5, exit=True)
        self.library.watched_start(
            os.fsencode(os.path.realpath(self.root.parent)),
            self.journal,
            ctypes.c_long(at),
            code,
            how,
        )
        try:
            self._operations()
        except BaseException:
            self.report("wrong", traceback.format_exc())
        self.report("steps", self.library.watched_steps())
        self.report("failed", self.library.watched_failed())
        os._exit(0)

    def _operations(self) -> None:
        work = Work(self.root, random.Random(self.seed), self.start)
        try:
            work.open()
            self.report("opened")
            for _ in range(self.count):
                op = work.choose()
                self.report("begin", op)
                self.report("done", *work.perform(op))
            work.writer.close()
            self.report("closed")
        except OSError as error:
            if not self.library.watched_failed():
                raise
            work.reader = None
            self.report("refused", repr(error))
            self._close_failed(work)

    def _close_failed(self, work: Work) -> None:
        """Close a writer that has failed; it may raise the same error again."""
        if work.writer is not None:
            try:
                work.writer.close()
            except OSError as error:
                self.report("refused again", repr(error))


def wait(child: int, seconds: float | None) -> int:
    """Return a child's exit code; kill it after `seconds`, if given."""
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Broken(f"the child hangs: no exit in {TIMEOUT} s")


def read_back(fd: int) -> bytes:
    """Return the content of a memory file, and close it."""
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb") as file:
        return file.read()


def list_states(start: State, reports: list[list]) -> tuple[list[State], list | None]:
    """Return the states that the dataset may have, and an unfinished operation.

    The first state is the last acknowledged one. `start` is that before the child.
    """
    states, begun = [start], None
    for kind, *rest in reports:
        if kind == "wrong":
            raise Broken(rest[0])
        if kind == "begin":
            begun = rest[0]
        elif kind == "done":
            op, acknowledged = rest
            states.append(model.apply(states[-1], op))
            states = states[-1:] if acknowledged else states
            begun = None
        elif kind == "closed":
            states = states[-1:]
    return states, begun


def settle(root: Path) -> None:
    """Make SQLite complete or drop a commit that a kill stopped, as a writer does.

    Otherwise readers that have the index open may not see it, and later ones do.
    """
    if (root / "index.sqlite").exists():
        with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as conn:
            conn.execute("INSERT INTO counters (name, value) VALUES ('settled', 0)")
            conn.execute(
                "DELETE FROM counters WHERE name = 'settled'"
            )  # not only in memory
            conn.commit()


def check(
    root: Path, start: State, reports: list[list], *, whole=False, beside=()
) -> State:
    """Check the dataset's state against the reports, and return it.

    Parameters
    ----------
    root : Path
        Not changed, except by `settle` if there are readers.
    start : State
        Before the child.
    reports : list of list
        Of the child.
    whole : bool
        Whether a writer has closed the dataset: then shards have no torn tail.
    beside : sequence of int
        Processes that read the dataset; stopped while it is copied.
    """
    states, begun = list_states(start, reports)
    copy = root.with_name("copy")
    try:
        if root.exists():
            with stopped(beside):
                shutil.copytree(root, copy)
        found = contents.read(copy, whole=whole)
        if begun is not None:
            if (
                begun[0] == "add" and begun[1] is None
            ):  # killed before it reported the id
                added = [
                    sample for sample in found.rows if sample not in states[-1].rows
                ]
                begun = [*begun[:1], *added, *begun[2:]] if len(added) == 1 else ["bad"]
            states.append(model.apply(states[-1], begun))
        state = model.which(states, found)
        if beside:
            settle(root)
            state = model.which(states, contents.read(root))
        shutil.rmtree(copy, ignore_errors=True)
        if (root / "index.sqlite").exists():
            with stopped(beside):
                shutil.copytree(root, copy)
            differences = model.differences(state, contents.read_with_fastshard(copy))
            need(not differences, f"fastshard's reader: {differences[:5]}")
        return state
    except Exception as error:
        ops = [r for r in reports if r[0] not in ("begin", "steps")][-8:]
        error.add_note(
            f"acknowledged: {len(states[0].rows)} rows; last: {ops}, {begun}"
        )
        raise
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def continue_dataset(root: Path, state: State) -> None:
    """Open the dataset with a writer in this process, add to it, and verify it."""
    from fastshard.columnar import verify

    work = Work(root, random.Random(0), state)
    work.open()
    field = work.state.fields[0] if work.state.fields else "alpha"
    if not work.state.fields:
        work.perform(["fields", [field]])
    for version in range(2):
        work.perform(["add", None, {field: version}, None])
    work.writer.close()
    differences = model.differences(work.state, contents.read(root, whole=True))
    need(not differences, f"after continuing: {differences[:5]}")
    faults = verify(root)
    need(not faults, f"verify: {faults[:5]}")
    contents.check_debris(root)


Counts = collections.Counter


def kills(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Kill writers of one dataset, one after the other, at any moment."""
    root, state = folder / "data", State()
    stop_file = folder / "stop"
    readers = [forked(watch, root, stop_file, rng.random()) for _ in range(2)]
    try:
        state = kill_writers(rng, root, state, counts, readers)
    finally:
        stop_file.touch()
        codes = [code_of(reader) for reader in readers]
    need(not any(codes), f"exit codes {codes} of readers beside")
    continue_dataset(root, state)
    for i in range(5):
        create(rng, folder / f"new{i}" / "data", counts)


def create(rng: random.Random, root: Path, counts: Counts) -> None:
    """Kill a writer while it creates a dataset."""
    root.parent.mkdir()
    at, how = rng.randrange(1, 80), rng.choice([KILL_BEFORE, KILL_AFTER])
    trial = Child(root, f"{rng.random()}", State(), count=2).run(at=at, how=how)
    counts["creations"] += trial.status == -signal.SIGKILL
    continue_dataset(root, check(root, State(), trial.reports))


def watch(root: Path, stop_file: Path, seed: float) -> None:
    """Read a dataset while others write and compact it, until `stop_file` exists."""
    from fastshard.columnar import ShardedDatasetReader

    rng = random.Random(seed)
    while not stop_file.exists():
        try:
            reader = ShardedDatasetReader(root)
        except FileNotFoundError:  # it is not created yet
            time.sleep(0.002)
            continue
        with reader:
            for _ in range(rng.randrange(1, 6)):
                seen = contents.read_by(reader)
                time.sleep(rng.random() * 0.02)
                again = contents.read_by(reader, rng.random() < 0.5)
                need(again == seen, f"a reader saw {seen}, and then {again}")
                if rng.random() < 0.5:
                    reader.refresh()


@contextlib.contextmanager
def stopped(processes: list[int]):
    """Stop processes for the context: closing an index may write to it."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
        need(os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]), "a reader has failed")
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it has failed and reported why
                os.kill(process, signal.SIGCONT)


def kill_writers(
    rng, root: Path, state: State, counts: Counts, readers: list[int]
) -> State:
    """Kill ten writers; return the state that they leave."""
    for i in range(10):
        child = Child(root, f"{rng.random()}", state, count=rng.randrange(1, 40))
        if rng.random() < 0.5:
            trial = child.run(seconds=rng.random() ** 2 * 0.2)
        else:
            how = rng.choice([KILL_BEFORE, KILL_AFTER])
            trial = child.run(at=rng.randrange(1, rng.choice([40, 400])), how=how)
        state = check(root, state, trial.reports, beside=readers)
        counts["kills"] += trial.status == -signal.SIGKILL
        counts["operations"] += sum(report[0] == "done" for report in trial.reports)
        if i % 3 == 2:
            trial = Child(root, f"{rng.random()}", state, count=3).run()
            state = check(root, state, trial.reports, whole=True, beside=readers)
    return state


def losses(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Simulate power losses at many moments of a session."""
    case = folder / "case"
    case.mkdir()
    root, start = case / "data", State()
    for _ in range(rng.randrange(3)):  # the dataset before the session
        trial = Child(root, f"{rng.random()}", start, count=15).run()
        start = check(root, start, trial.reports)
    disk = power_loss.Disk(case)
    child = Child(root, f"{rng.random()}", start, count=rng.randrange(1, 30))
    trial = child.run(journal=True)
    list_states(start, trial.reports)
    check_losses(disk, trial, start, rng, folder, counts, moments=MOMENTS)


def check_losses(
    disk, trial, start, rng, folder, counts, *, moments, deeper=True
) -> None:
    """Build and check the disks that power losses may leave of a journalled session."""
    journal = list(power_loss.records(trial.journal))
    chosen = {rng.randrange(len(journal) + 1) for _ in range(moments)} | {len(journal)}
    reports: list[list] = []
    for i in range(len(journal) + 1):
        if i in chosen:
            style = rng.choice(power_loss.STYLES)
            case = folder / f"power{int(deeper)}"
            disk.build(case, style, rng)
            try:
                state = check(case / "data", start, reports)
                if deeper and rng.random() < 0.3:
                    lose_again(case, state, rng, folder, counts)
                else:
                    continue_dataset(case / "data", state)
            except BaseException as error:
                about = [f"{r.kind} {r.paths} {r.offset}" for r in journal[i - 6 : i]]
                error.add_note(f"record {i} of {len(journal)}, {style}; after {about}")
                raise
            counts["power losses"] += 1
            shutil.rmtree(case)
        if i < len(journal):
            disk.follow(journal[i])
            if journal[i].kind == "n":
                reports.append(json.loads(journal[i].data))


def lose_again(case, state, rng, folder, counts) -> None:
    """Simulate power losses of a session that follows a power loss."""
    disk = power_loss.Disk(case)
    child = Child(case / "data", f"{rng.random()}", state, count=rng.randrange(4))
    trial = child.run(journal=True)
    list_states(state, trial.reports)
    check_losses(disk, trial, state, rng, folder, counts, moments=3, deeper=False)


def errors(rng: random.Random, folder: Path, counts: Counts) -> None:
    """Let calls of a session fail, one in each run."""
    seed, count = f"{rng.random()}", rng.randrange(10, 40)
    case = folder / "case"
    case.mkdir()
    root, start = case / "data", State()
    if rng.random() < 0.7:
        trial = Child(root, f"{rng.random()}", start, count=15).run()
        start = check(root, start, trial.reports)
    before = folder / "before"
    shutil.copytree(case, before)
    steps = Child(root, seed, start, count=count).run(journal=True).steps
    shutil.rmtree(case)
    for at in sorted(rng.sample(range(1, steps + 1), min(steps, MOMENTS))):
        code, how = rng.choice(FAULTS)
        shutil.copytree(before, case)
        disk = power_loss.Disk(case)
        child = Child(root, seed, start, count=count)
        try:
            trial = child.run(journal=True, at=at, code=code, how=how)
            check_failure(disk, trial, start, rng, folder)
        except BaseException as error:
            error.add_note(f"{errno.errorcode[code]} at step {at} of {steps}, {how}")
            raise
        counts["errors"] += 1
        shutil.rmtree(case)
        shutil.rmtree(folder / "power")


def check_failure(disk, trial, start, rng, folder) -> None:
    """Check what a session leaves after an error, and after a power loss then."""
    root = folder / "case" / "data"
    state = check(root, start, trial.reports)
    continue_dataset(root, state)
    for record in power_loss.records(trial.journal):
        disk.follow(record)
    style = rng.choice(power_loss.STYLES)
    disk.build(folder / "power", style, rng)
    try:
        state = check(folder / "power" / "data", start, trial.reports)
        continue_dataset(folder / "power" / "data", state)
    except BaseException as error:
        error.add_note(f"after a power loss, {style}")
        raise


PENDING = pending_rows.SINGLE_ROWS, pending_rows.ROWS  # as released
PACK_SHARE = 0.7  # of the writers in every other round
MOMENTS = 40  # of a session at which something fails; 8 if rounds are counted

KINDS: dict[str, Callable] = {
    "kills": kills,
    "losses": losses,
    "errors": errors,
    "reading": reading,
}


def run(
    kinds: list[str], seconds: float, most: float, seed: int, *, packed: bool
) -> int:
    """Run rounds for `seconds`, at most `most` of them."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    counts: Counts = collections.Counter()
    until = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < until and rounds < most:
        kind = kinds[rounds % len(kinds)]
        name = f"{seed} {rounds} {kind}"
        Work.pack_share = PACK_SHARE if (seed + rounds) % 2 else 0.0
        if packed:
            Work.pack_share = 1.0
        if (seed + rounds) // 2 % 2:
            pending_rows.SINGLE_ROWS, pending_rows.ROWS = 1, 3
        else:
            pending_rows.SINGLE_ROWS, pending_rows.ROWS = PENDING
        folder = Path(tempfile.mkdtemp("", "columnar", MEMORY))
        try:
            KINDS[kind](random.Random(name), folder, counts)
        except BaseException:
            print(f"round {name!r} leaves {folder}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
        rounds += 1
    print(f"{rounds} rounds, seed {seed}: {dict(counts)}")
    return 0


def main(arguments: list[str]) -> int:
    """Run the tests, in a new process if the library must be preloaded."""
    kinds = list(KINDS)
    packed = arguments[-1:] == ["packed"]
    if packed:
        arguments.pop()
    if arguments and arguments[0] in KINDS:
        kinds, seconds = [arguments.pop(0)], 1.0
    else:
        seconds = 60.0
    limit, most = 10.0, math.inf
    if arguments and arguments[0].endswith("rounds"):
        limit, most = math.inf, int(arguments[0].removesuffix("rounds"))
        globals()["MOMENTS"] = 8
    elif arguments:
        limit = float(arguments[0])
    seed = int(arguments[1]) if arguments[1:] else time.time_ns() % 10**6
    if kinds == ["reading"] or hasattr(ctypes.CDLL(None), "watched_start"):
        return run(kinds, seconds * limit, most, seed, packed=packed)
    with tempfile.TemporaryDirectory() as name:
        where = os.environ | {"LD_PRELOAD": preload(Path(name))}
        command = [sys.executable, __file__, *sys.argv[1:]]
        return subprocess.run(command, env=where, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
