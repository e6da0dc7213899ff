"""Run the tests of atdata with `fastshard.typed` in its place.

    python tests/upstream/atdata_run.py atdata-0.7.0b1/tests [dataset,lens] [-k wds]

The folder is that of its source distribution, which needs Python 3.12; its tests run
under 3.11 too, for atdata itself is not imported. With FASTSHARD_UPSTREAM=theirs they
run with atdata. Options of pytest may follow. The exit status is pytest's: a test fails
too if it passes although `atdata_lists.DIFFERENT` lists it.

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
FILES = (
    *("dataset", "lens", "workflow_lens", "write_samples", "partial_failure"),
    *("dev_experience", "manifest", "manifest_proxy", "testing", "hf_api"),
    *("sources", "helpers", "protocols", "logging", "query_coverage"),
    *("workflow_manifest", "workflow_e2e", "workflow_edge_cases", "workflow_local"),
    *("local", "index_providers", "index_write", "disk_store", "cid", "checksums"),
    *("lexicons", "integration/redis_live", "integration/postgres_live"),
    *("integration/s3_live", "integration/atproto_live", "integration/lens_e2e"),
    "integration/session_management",
)


def path_of(tests: Path, name: str) -> Path:
    folder, _, stem = name.rpartition("/")
    return tests / folder / f"test_{stem}.py"


def main(folder: str, *arguments: str) -> int:
    """Run the tests; return pytest's exit status."""
    given = [a for a in arguments if a.split(",")[0] in FILES]
    options = [a for a in arguments if a not in given]
    names = given[0].split(",") if given else FILES
    tests = Path(folder).resolve()
    search = dict.fromkeys([str(HERE), *filter(None, sys.path)])
    sys.path += [str(HERE), str(HERE.parent)]  # for `support`; HERE: with -P too
    from atdata_servers import serve

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
            *(str(path_of(tests, name)) for name in names),
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
