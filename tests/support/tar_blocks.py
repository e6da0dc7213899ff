"""Tar headers built by hand, for headers that no program writes."""


def header(name=b"m.bin", kind=b"0", size=b"%011o\0" % 3, **fields):
    """Build a header block; without `checksum` the right one is computed."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[257:265] = fields.get("magic", b"ustar\x0000")
    prefix = fields.get("prefix", b"")
    block[345 : 345 + len(prefix)] = prefix
    link = fields.get("link", b"")
    block[157 : 157 + len(link)] = link
    block[508:512] = fields.get("tail", bytes(4))
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


def extension(kind, data, **fields):
    return header(b"ext", kind, b"%011o\0" % len(data), **fields) + padded(data)


def record(key, value):
    """Build a pax record; its length counts its own digits."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return b"%d" % length + body


END = bytes(1024)
