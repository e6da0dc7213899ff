"""HTTP server of ranges of one file, in a process of its own.

python range_server.py FILE DELAY: prints its port; DELAY is in seconds, a response.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class RangeHandler(BaseHTTPRequestHandler):
    """Answers each request with a range of the file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    path_of_file = Path()
    delay = 0.0

    def do_GET(self) -> None:
        size = self.path_of_file.stat().st_size
        found = RANGE.fullmatch(self.headers["Range"] or "")
        if found is None or not self.path.endswith(self.path_of_file.name):
            self.send_error(404)
            return
        start, end = int(found[1]), min(int(found[2]) + 1, size)
        time.sleep(self.delay)
        with self.path_of_file.open("rb") as file:
            file.seek(start)
            body = file.read(end - start)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:  # type: ignore[override, unused-ignore]
        pass


@contextmanager
def serve_ranges(path: Path, delay: float = 0.0) -> Iterator[str]:
    """Serve a file; yield its URL."""
    command = [sys.executable, __file__, str(path), str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/{path.name}"
        finally:
            process.kill()


if __name__ == "__main__":
    RangeHandler.path_of_file = Path(sys.argv[1])
    RangeHandler.delay = float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
