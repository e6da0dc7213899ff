"""An object store of S3's protocol on this machine, by moto."""

import gc
import itertools
from contextlib import contextmanager
from pathlib import Path

NUMBERS = itertools.count()
ACCESS, SECRET = "someone", "averysecretkey"


class Bucket:
    """A new bucket, and the arguments with which `S3Source` reads it."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.name = f"typed-{next(NUMBERS)}"
        self.endpoint = endpoint
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        self.client.create_bucket(Bucket=self.name)

    def put(self, key: str, path: Path) -> str:
        """Store a file; return its URL."""
        self.client.put_object(Bucket=self.name, Key=key, Body=path.read_bytes())
        return f"s3://{self.name}/{key}"

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "access_key": ACCESS, "secret_key": SECRET}

    @property
    def store(self) -> dict[str, str]:
        """The ``store=`` with which `fastshard.open` reads it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    def environment(self, monkeypatch) -> None:
        """Make the bucket that of this process's environment."""
        monkeypatch.setenv("AWS_ENDPOINT_URL", self.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT", self.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_REGION", "us-east-1")


@contextmanager
def serve_s3():
    """Run a server; yield its URL."""
    import moto.server

    server = moto.server.ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        gc.collect()
