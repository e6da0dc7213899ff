"""Make the tars here, and the indexes that other tools write of them.

    python make.py WDS2IDX

WDS2IDX is `wds2idx.py` of nvidia-dali (2.4.0 made what is here). Energon's index is
written as `prepare.py` of megatron-energon 7.4.1 does: tarfile's member offsets at
changes of the base name, and where tarfile stops.
"""

import io
import re
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
NAMES = [
    "a.jpg", "a.json", "sub/", "sub/b.seg.png", "sub/b.cls", "nodot", "sub/nodot",
    ".hidden", "sub/.hidden", "__meta__/x.json", "__x__", "dir.v1/c.jpg", "é.txt",
    "A.JPG", "a.cls", "empty.txt", "last/",
]  # fmt: skip
LONG = "long/" + "d" * 120 + ".txt"
KINDS = {
    "gnu": (tarfile.GNU_FORMAT, 1, NAMES),
    "pax": (tarfile.PAX_FORMAT, 1.5, [*NAMES, LONG]),
    "ustar": (tarfile.USTAR_FORMAT, 1, [n for n in NAMES if n.isascii()]),
}
SAMPLE_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
META_NAME = re.compile(r"__[^/]*__($|/)")


def write_tar(path: Path, form: int, mtime: float, names: list[str]) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime = mtime
            data = b"" if name.startswith("empty") else name.encode() * 9
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                data = b""
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def energon(path: Path) -> bytes:
    offsets = []
    last = None
    with tarfile.open(path, "r:*") as tar:
        for member in tar:
            if not member.isreg() or META_NAME.match(member.name):
                continue
            found = SAMPLE_NAME.match(member.name)
            if found is None:
                continue
            if found.group(1) != last:
                offsets.append(member.offset)
                last = found.group(1)
        offsets.append(tar.offset)
    return struct.pack(f"<{len(offsets)}Q", *offsets)


if __name__ == "__main__":
    for kind, options in KINDS.items():
        path = HERE / f"{kind}.tar"
        write_tar(path, *options)
        command = [sys.executable, sys.argv[1], path, path.with_suffix(".idx")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        path.with_suffix(".tar.idx").write_bytes(energon(path))
