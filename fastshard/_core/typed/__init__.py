"""Typed samples: msgpack payloads, their arrays, objects of a declared type."""
