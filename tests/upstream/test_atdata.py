"""Tests of atdata pass on `fastshard.typed`, where its sources are given.

FASTSHARD_ATDATA_TESTS is the folder of its tests. Those that must differ are listed,
with the reason, in `atdata_lists.DIFFERENT`.
"""

import os
import subprocess
import sys

import pytest

from support.paths import TESTS
from support.processes import environment

NEEDED = (
    *("msgspec", "ormsgpack", "pandas", "pyarrow", "redis", "webdataset"),
    *("psycopg", "boto3", "moto", "obstore"),
    *("atproto_core", "libipld"),  # test_cid compares with them
)


def test_upstream():
    folder = os.environ.get("FASTSHARD_ATDATA_TESTS")
    if not folder:
        pytest.skip("FASTSHARD_ATDATA_TESTS is not set")
    for library in NEEDED:
        pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, TESTS / "upstream/atdata_run.py", folder],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
