"""A cache of remote objects on this machine."""
