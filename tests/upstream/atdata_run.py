"""Run the tests of atdata with `fastshard.typed` in its place.

    python tests/upstream/atdata_run.py atdata-0.7.0b1/tests [dataset,lens] [-k wds]

The folder is that of its source distribution, which needs Python 3.12; its tests run
under 3.11 too, for atdata itself is not imported. With FASTSHARD_UPSTREAM=theirs they
run with atdata. Options of pytest may follow. The exit status is pytest's: a test fails
too if it passes although `atdata_lists.DIFFERENT` lists it, a run fails if a file is
not there, or if pytest collects fewer tests than a file has.

Redis, Postgres, S3 (moto) and a personal data server are started where this machine has
them. Variables ATDATA_PDS_URL, ATDATA_PLC_URL, ATPROTO_TEST_HANDLE and
ATPROTO_TEST_PASSWORD name another one of these, a real one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def files_of(tests: Path) -> dict[str, Path]:
    """Return the test files of a release by name: ``lens``, ``integration/s3_live``."""
    # Tests of servers come last: those with mocks of S3 empty the server.
    found = sorted(tests.rglob("test_*.py"), key=lambda path: (len(path.parts), path))
    names = [p.with_name(p.stem.removeprefix("test_")) for p in found]
    return {
        name.relative_to(tests).as_posix(): path
        for name, path in zip(names, found, strict=True)
    }


def choose(tests: Path, wanted: str) -> list[str]:
    """Return the paths of files to run; exit if one is not in the release.

    Without names: all but those of `atdata_lists.NOT_RUN`.
    """
    from atdata_lists import NOT_RUN

    files = files_of(tests)
    left_out = {name for name, path in files.items() if path.name in NOT_RUN}
    if not wanted:
        for name in sorted(left_out):
            print(f"{name}: not run: {NOT_RUN[files[name].name]}")
    names = wanted.split(",") if wanted else [n for n in files if n not in left_out]
    missing = [name for name in names if name not in files]
    missing += sorted(set(NOT_RUN) - {path.name for path in files.values()})
    if missing or not names:
        sys.exit(f"not in {tests}: {', '.join(missing) or 'any test'}")
    return [str(files[name]) for name in names]


def main(folder: str, *arguments: str) -> int:
    """Run the tests; return pytest's exit status."""
    wanted = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    options = arguments[bool(wanted) :]
    tests = Path(folder).resolve()
    search = dict.fromkeys([str(HERE), *filter(None, sys.path)])
    sys.path += [str(HERE), str(HERE.parent)]  # for `support`; HERE: with -P too
    from atdata_servers import serve

    paths = choose(tests, wanted)

    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        )
        Path(temporary, "home").mkdir()
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rfEX", "--tb=short"),
            *("-c", os.devnull, "--rootdir", str(tests), "-p", "atdata_plugin"),
            *("-p", "no:cacheprovider", "--basetemp", f"{temporary}/tests"),
            *("-m", "not network", *options),
            *paths,
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "PYTHONDONTWRITEBYTECODE": "1",
            **stack.enter_context(serve()),
            "FASTSHARD_ATDATA_TESTS": str(tests),
            "HOME": f"{temporary}/home",  # default indexes and stores are below it
            "FASTSHARD_CACHE": f"{temporary}/cache",  # blobs are read from a cache
        }
        return subprocess.run(command, env=environment, cwd=temporary).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
