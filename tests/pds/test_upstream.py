"""The tests of atdata that need a server pass on a real one, where they are given."""

import os
import subprocess
import sys

import pytest

from support.paths import TESTS
from support.processes import environment

FILES = "integration/atproto_live,integration/lens_e2e,integration/session_management"


def test_atdata(accounts, tmp_path):
    folder = os.environ.get("FASTSHARD_ATDATA_TESTS")
    if not folder:
        pytest.skip("FASTSHARD_ATDATA_TESTS is not set")
    pytest.importorskip("webdataset")
    names = {
        "ATDATA_PDS_URL": accounts.urls[0],
        "ATDATA_PLC_URL": accounts.plc,
        "ATPROTO_TEST_HANDLE": "bob.test",
        "ATPROTO_TEST_PASSWORD": accounts.password,
        "FASTSHARD_CACHE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, TESTS / "upstream/atdata_run.py", folder, FILES],
        env={**environment(), **names},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
