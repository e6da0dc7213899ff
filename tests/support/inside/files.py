"""Temporary files and locks."""

from fastshard._util.processes import temporaries


def machine_tags():
    """Return the parts of temporary names that stand for the machine and its start."""
    return temporaries._machine_tags()


def make_temporary_name(name):
    """Return a name as temporary files have, of this machine."""
    return temporaries._make_name(name)


def before_each_hold(monkeypatch, hook):
    """Call a hook before a temporary file or folder is locked."""
    hold = temporaries._hold

    def hold_later(*args):
        hook(*args)
        return hold(*args)

    monkeypatch.setattr(temporaries, "_hold", hold_later)


def replace_lock(monkeypatch, function):
    """Replace the exclusive lock of a file."""
    monkeypatch.setattr("fastshard._util.processes.locks._lock", function)
