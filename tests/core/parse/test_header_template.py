"""Headers of members that are made of a template."""

import os
import tarfile

import pytest

from fastshard._core.io.paging import start_writeback
from fastshard._core.parse.tar import fill_header
from fastshard.formats.tar_writer import HeaderEncoder


@pytest.mark.parametrize("name", [b"a", b"folder/key.msgpack", b"n" * 100, b"\x7f~ !"])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 8**11 - 1])
@pytest.mark.parametrize(
    ("mode", "mtime", "mark"), [(0o644, 0, b""), (0o7777, 8**11 - 1, b"fastshard")]
)
def test_headers_are_those_that_tarfile_reads(name, size, mode, mtime, mark):
    block = HeaderEncoder(mode, mtime, mark).member(name, size)
    assert len(block) == 512
    member = tarfile.TarInfo.frombuf(block, "ascii", "strict")  # checks the checksum
    assert member.name.encode() == name
    assert (member.size, member.mode, member.mtime) == (size, mode, mtime)
    assert (member.uid, member.gid, member.uname) == (0, 0, mark.decode())
    assert member.type == tarfile.REGTYPE
    assert block[257:265] == b"ustar\x0000"


def test_values_too_large_for_a_header_are_refused():
    template = bytes(148) + b" " * 8 + bytes(356)
    fill_header(template, b"n" * 100, 8**11 - 1)
    for wrong in (
        (template, b"n" * 101, 0),
        (template, b"n", 8**11),
        (template[1:], b"n", 0),
        (template + b"\0", b"n", 0),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            fill_header(*wrong)
    with pytest.raises(OverflowError):
        fill_header(template, b"n", -1)
    assert template == bytes(148) + b" " * 8 + bytes(356)


def test_a_written_range_is_a_hint(tmp_path):
    path = tmp_path / "file"
    with open(path, "w+b") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        for offset, size in ((0, 1 << 20), (1 << 19, 1 << 30), (2**63, 1), (1, 2**63)):
            start_writeback(file.fileno(), offset, size)
        file.seek(0)
        data = file.read()
        fd = file.fileno()
    assert path.read_bytes() == data
    start_writeback(fd, 0, 1)  # closed: an error is ignored
    start_writeback(-1, 0, 1)
