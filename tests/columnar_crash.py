"""Kill a process that writes a columnar dataset, cut its power, let its disk fail.

    python tests/columnar_crash.py [MINUTES] [SEED]
    python tests/columnar_crash.py kills|losses|errors|reading SECONDS SEED
    python tests/columnar_crash.py kills|losses|errors|reading 500rounds SEED

A child works on a dataset and reports what it begins, and what the writer says is
stored. Then what is on the disk is read without fastshard and with it: it must be what
was stored last, or what a later operation makes, and the dataset must go on.
Readers look on: in the child, where compactions come between, and beside it. When a
writer has then been opened and closed no file is left that no row needs. Where it
prints what it did when it passes. It needs Linux and a C compiler.
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

from support.columnar import found as contents
from support.columnar import model, power_loss
from support.columnar.found import Broken, need
from support.columnar.model import State, Work
from support.columnar.readers import code_of, forked, reading
from support.paths import TESTS

WATCHED = TESTS / "support" / "columnar" / "watched.c"
ONCE, FROM_THEN_ON, SHORT, KILL_BEFORE, KILL_AFTER = range(5)  # enum how of watched.c
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # nothing is slow there
PATIENCE = 30  # seconds after which a child hangs

FAULTS = [
    (errno.EIO, ONCE),
    (errno.ENOSPC, FROM_THEN_ON),
    (errno.ENOSPC, SHORT),
    (errno.ENOSPC, ONCE),
]


def preload(folder: Path) -> str:
    """Compile watched.c; return what to preload."""
    target = folder / "watched.so"
    compiler = os.environ.get("CC", "cc").split()
    options = ["-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-pthread"]
    command = [*compiler, *options, "-o", str(target), str(WATCHED)]
    subprocess.run(command, check=True)
    return str(target)


class Trial(NamedTuple):
    """What a child did."""

    reports: list[list]
    journal: bytes
    status: int  # as subprocess has it: negative where a signal ended it

    @property
    def steps(self) -> int:
        return next((r[1] for r in self.reports if r[0] == "steps"), 0)


class Child:
    """A forked process that works on a dataset."""

    def __init__(self, root: Path, seed: str, start: State, *, count: int) -> None:
        self.root, self.seed, self.start, self.count = root, seed, start, count
        self.library = ctypes.CDLL(None)
        self.library.watched_steps.restype = ctypes.c_long
        self.library.watched_failed.restype = ctypes.c_long

    def run(
        self, *, journal=False, at=0, code=0, how=ONCE, seconds: float | None = None
    ) -> Trial:
        """Fork, wait and return; kill it after some seconds if that is said."""
        self.reports = os.memfd_create("reports")
        self.journal = os.memfd_create("journal") if journal else -1
        child = os.fork()
        if child == 0:
            self._work(at, code, how)
        status = wait(child, seconds)
        reports = taken(self.reports).split(b"\n")[:-1]
        log = taken(self.journal) if journal else b""
        return Trial([json.loads(line) for line in reports], log, status)

    def say(self, *report: object) -> None:
        line = json.dumps(report).encode() + b"\n"
        os.write(self.reports, line)
        if self.journal >= 0:
            self.library.watched_note(line, ctypes.c_long(len(line)))

    def _work(self, at: int, code: int, how: int) -> None:
        """Work until the end or a fault, and leave without any clearing up."""
        faulthandler.dump_traceback_later(PATIENCE - 5, exit=True)
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
            self.say("wrong", traceback.format_exc())
        self.say("steps", self.library.watched_steps())
        self.say("failed", self.library.watched_failed())
        os._exit(0)

    def _operations(self) -> None:
        work = Work(self.root, random.Random(self.seed), self.start)
        try:
            work.open()
            self.say("opened")
            for _ in range(self.count):
                op = work.choose()
                self.say("begin", op)
                self.say("done", *work.perform(op))
            work.writer.close()
            self.say("closed")
        except OSError as error:
            if not self.library.watched_failed():
                raise
            work.reader = None
            self.say("refused", repr(error))
            self._after(work)

    def _after(self, work: Work) -> None:
        """Let a writer go that has failed: it may say so again, in the same way."""
        if work.writer is not None:
            try:
                work.writer.close()
            except OSError as error:
                self.say("refused again", repr(error))


def wait(child: int, seconds: float | None) -> int:
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Broken("it hangs")


def taken(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb") as file:
        return file.read()


def possible(start: State, reports: list[list]) -> tuple[list[State], list | None]:
    """Return the states that may be there, and an operation that was not ended.

    The first is what was acknowledged last; `start` was when the child began.
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
    """Have SQLite decide of a commit that a kill has stopped, as the next writer does.

    Those who have the index open may not see it, and who opens it later would.
    """
    if (root / "index.sqlite").exists():
        with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as conn:
            conn.execute("INSERT INTO counters (name, value) VALUES ('settled', 0)")
            conn.execute("DELETE FROM counters WHERE name = 'settled'")  # pages count
            conn.commit()


def check(
    root: Path, start: State, reports: list[list], *, whole=False, beside=()
) -> State:
    """Check what is there against reports, and return it.

    Nothing is changed, unless there are readers beside: see `settle`.
    """
    states, begun = possible(start, reports)
    copy = root.with_name("copy")
    try:
        if root.exists():
            with stopped(beside):
                shutil.copytree(root, copy)
        found = contents.read(copy, whole=whole)
        if begun is not None:
            if begun[0] == "add" and begun[1] is None:  # it did not live to tell its id
                news = [
                    sample for sample in found.rows if sample not in states[-1].rows
                ]
                begun = [*begun[:1], *news, *begun[2:]] if len(news) == 1 else ["bad"]
            states.append(model.apply(states[-1], begun))
        state = model.which(states, found)
        if beside:
            settle(root)
            state = model.which(states, contents.read(root))
        shutil.rmtree(copy, ignore_errors=True)
        if (root / "index.sqlite").exists():
            with stopped(beside):
                shutil.copytree(root, copy)
            said = model.differences(state, contents.read_with_fastshard(copy))
            need(not said, f"fastshard's reader: {said[:5]}")
        return state
    except Exception as error:
        ops = [r for r in reports if r[0] not in ("begin", "steps")][-8:]
        error.add_note(
            f"acknowledged: {len(states[0].rows)} rows; last: {ops}, {begun}"
        )
        raise
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def go_on(root: Path, state: State) -> None:
    """Open it for writing again, in this process, and add to it."""
    from fastshard.columnar import verify

    work = Work(root, random.Random(0), state)
    work.open()
    field = work.state.fields[0] if work.state.fields else "alpha"
    if not work.state.fields:
        work.perform(["fields", [field]])
    for version in range(2):
        work.perform(["add", None, {field: version}, None])
    work.writer.close()
    said = model.differences(work.state, contents.read(root, whole=True))
    need(not said, f"after going on: {said[:5]}")
    faults = verify(root)
    need(not faults, f"verify: {faults[:5]}")
    contents.check_debris(root)


Done = collections.Counter


def kills(rng: random.Random, folder: Path, done: Done) -> None:
    """Kill writers of one dataset, one after the other, at any moment of their work."""
    root, state = folder / "data", State()
    done_with = folder / "done"
    readers = [forked(watch, root, done_with, rng.random()) for _ in range(2)]
    try:
        state = killed(rng, root, state, done, readers)
    finally:
        done_with.touch()
        codes = [code_of(reader) for reader in readers]
    need(not any(codes), f"exit codes {codes} of readers beside")
    go_on(root, state)
    for i in range(5):
        create(rng, folder / f"new{i}" / "data", done)


def create(rng: random.Random, root: Path, done: Done) -> None:
    """Kill a writer while it makes a dataset."""
    root.parent.mkdir()
    at, how = rng.randrange(1, 80), rng.choice([KILL_BEFORE, KILL_AFTER])
    trial = Child(root, f"{rng.random()}", State(), count=2).run(at=at, how=how)
    done["creations"] += trial.status == -signal.SIGKILL
    go_on(root, check(root, State(), trial.reports))


def watch(root: Path, done_with: Path, seed: float) -> None:
    """Read again and again what others write and compact, and are killed at."""
    from fastshard.columnar import ShardedDatasetReader

    rng = random.Random(seed)
    while not done_with.exists():
        try:
            reader = ShardedDatasetReader(root)
        except FileNotFoundError:  # it is not made yet
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
    """Stop processes for a while: who closes an index may write to it."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
        need(os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1]), "a reader has failed")
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has failed, and said why
                os.kill(process, signal.SIGCONT)


def killed(rng, root: Path, state: State, done: Done, readers: list[int]) -> State:
    """Kill ten writers; return what they leave."""
    for i in range(10):
        child = Child(root, f"{rng.random()}", state, count=rng.randrange(1, 40))
        if rng.random() < 0.5:
            trial = child.run(seconds=rng.random() ** 2 * 0.2)
        else:
            how = rng.choice([KILL_BEFORE, KILL_AFTER])
            trial = child.run(at=rng.randrange(1, rng.choice([40, 400])), how=how)
        state = check(root, state, trial.reports, beside=readers)
        done["kills"] += trial.status == -signal.SIGKILL
        done["operations"] += sum(report[0] == "done" for report in trial.reports)
        if i % 3 == 2:
            trial = Child(root, f"{rng.random()}", state, count=3).run()
            state = check(root, state, trial.reports, whole=True, beside=readers)
    return state


def losses(rng: random.Random, folder: Path, done: Done) -> None:
    """Cut the power of a session at many moments."""
    case = folder / "case"
    case.mkdir()
    root, start = case / "data", State()
    for _ in range(rng.randrange(3)):  # what is there before
        trial = Child(root, f"{rng.random()}", start, count=15).run()
        start = check(root, start, trial.reports)
    disk = power_loss.Disk(case)
    child = Child(root, f"{rng.random()}", start, count=rng.randrange(1, 30))
    trial = child.run(journal=True)
    possible(start, trial.reports)
    cut(disk, trial, start, rng, folder, done, moments=MOMENTS)


def cut(disk, trial, start, rng, folder, done, *, moments, deeper=True) -> None:
    """Build and check what power losses may leave of a journalled session."""
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
                    again(case, state, rng, folder, done)
                else:
                    go_on(case / "data", state)
            except BaseException as error:
                about = [f"{r.kind} {r.paths} {r.offset}" for r in journal[i - 6 : i]]
                error.add_note(f"record {i} of {len(journal)}, {style}; after {about}")
                raise
            done["power losses"] += 1
            shutil.rmtree(case)
        if i < len(journal):
            disk.follow(journal[i])
            if journal[i].kind == "n":
                reports.append(json.loads(journal[i].data))


def again(case, state, rng, folder, done) -> None:
    """Cut the power of what comes after a power loss."""
    disk = power_loss.Disk(case)
    child = Child(case / "data", f"{rng.random()}", state, count=rng.randrange(4))
    trial = child.run(journal=True)
    possible(state, trial.reports)
    cut(disk, trial, state, rng, folder, done, moments=3, deeper=False)


def errors(rng: random.Random, folder: Path, done: Done) -> None:
    """Let one call after the other fail in a session."""
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
            fails(disk, trial, start, rng, folder)
        except BaseException as error:
            error.add_note(f"{errno.errorcode[code]} at step {at} of {steps}, {how}")
            raise
        done["errors"] += 1
        shutil.rmtree(case)
        shutil.rmtree(folder / "power")


def fails(disk, trial, start, rng, folder) -> None:
    """Check what a session leaves that an error has met, and then a power loss."""
    root = folder / "case" / "data"
    state = check(root, start, trial.reports)
    go_on(root, state)
    for record in power_loss.records(trial.journal):
        disk.follow(record)
    style = rng.choice(power_loss.STYLES)
    disk.build(folder / "power", style, rng)
    try:
        state = check(folder / "power" / "data", start, trial.reports)
        go_on(folder / "power" / "data", state)
    except BaseException as error:
        error.add_note(f"after a power loss, {style}")
        raise


MOMENTS = 40  # of a session, at which something fails; fewer where rounds are counted

KINDS: dict[str, Callable] = {
    "kills": kills,
    "losses": losses,
    "errors": errors,
    "reading": reading,
}


def run(kinds: list[str], seconds: float, most: float, seed: int) -> int:
    """Do rounds until the time is over, or so many are done."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    done: Done = collections.Counter()
    until = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < until and rounds < most:
        kind = kinds[rounds % len(kinds)]
        name = f"{seed} {rounds} {kind}"
        folder = Path(tempfile.mkdtemp("", "columnar", MEMORY))
        try:
            KINDS[kind](random.Random(name), folder, done)
        except BaseException:
            print(f"round {name!r} leaves {folder}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
        rounds += 1
    print(f"{rounds} rounds, seed {seed}: {dict(done)}")
    return 0


def main(arguments: list[str]) -> int:
    """Run again with the library preloaded, where it is needed and not yet there."""
    kinds = list(KINDS)
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
        return run(kinds, seconds * limit, most, seed)
    with tempfile.TemporaryDirectory() as name:
        where = os.environ | {"LD_PRELOAD": preload(Path(name))}
        command = [sys.executable, __file__, *sys.argv[1:]]
        return subprocess.run(command, env=where, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
