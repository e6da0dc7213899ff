"""Run the tests of atdata with `fastshard.typed` in its place.

    python tests/upstream/atdata_run.py atdata-0.7.0b1/tests [dataset,lens] [-k wds]

The folder is that of its source distribution, which needs Python 3.12; its tests run
under 3.11 too, for atdata itself is not imported. With FASTSHARD_UPSTREAM=theirs they
run with atdata. Options of pytest may follow. The exit status is pytest's: a test fails
too if it passes although `atdata_names.DIFFERENT` lists it.
"""

from __future__ import annotations

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
    "workflow_manifest",
)


def main(folder: str, *arguments: str) -> int:
    """Run the tests; return pytest's exit status."""
    given = [a for a in arguments if a.split(",")[0] in FILES]
    options = [a for a in arguments if a not in given]
    names = given[0].split(",") if given else FILES
    tests = Path(folder).resolve()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rfEX", "--tb=short"),
            *("-c", os.devnull, "--rootdir", str(tests), "-p", "atdata_plugin"),
            *("-p", "no:cacheprovider", "--basetemp", f"{temporary}/tests", *options),
            *(str(tests / f"test_{name}.py") for name in names),
        ]
        search = dict.fromkeys([str(HERE), *filter(None, sys.path)])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(command, env=environment, cwd=temporary).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
