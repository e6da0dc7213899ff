"""Progress bars in processes that fork."""

import os
import subprocess
import sys

import pytest

from support.processes import environment

KILLED = """
import os, signal
from fastshard._util.progress import make_bar

with make_bar(1, "here") as bar:
    bar.update()
child = os.fork()
if child == 0:
    make_bar(1, "there").get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
with make_bar(1, "here") as bar:
    bar.update()
"""
HELD = """
import os, threading
from fastshard._util.progress import make_bar

held, end = threading.Event(), threading.Event()

def hold():
    with make_bar(1, "a thread's").get_lock():
        held.set()
        end.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    with make_bar(1, "the child's") as bar:
        bar.update()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
end.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("script", [KILLED, HELD], ids=["killed", "held"])
def test_no_bar_waits_for_the_lock_of_another_process(script):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
