"""The logger of typed datasets, and the messages of operations."""

import logging

import pytest

from fastshard import typed


class Lines:
    """A logger that keeps its messages."""

    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        if level not in ("debug", "info", "warning", "error"):
            raise AttributeError(level)
        return lambda msg, *args, **kw: self.lines.append((level, msg % args))


@pytest.fixture
def lines():
    logger = Lines()
    typed.configure_logging(logger)
    yield logger.lines
    typed.configure_logging()


def test_the_logger_is_that_of_the_package():
    assert typed.get_logger() is logging.getLogger("fastshard")
    assert isinstance(typed.get_logger(), typed.LoggerProtocol)


def test_another_logger_takes_its_place(lines):
    typed.get_logger().info("hello %s", "world")
    assert lines == [("info", "hello world")]
    typed.configure_logging(logging.getLogger("fastshard"))
    assert typed.get_logger() is logging.getLogger("fastshard")


def test_a_logger_has_four_methods():
    with pytest.raises(TypeError, match="object lacks debug, info, warning, error"):
        typed.configure_logging(object())
    assert typed.get_logger() is logging.getLogger("fastshard")


def test_an_operation_logs_its_start_and_end(lines):
    with typed.log_operation("copy", shards=4, to="b%s"):
        assert lines == [("info", "copy: started (shards=4, to=b%s)")]
    (level, text) = lines[-1]
    assert level == "info"
    assert text.startswith("copy: completed in ")
    assert text.endswith("s (shards=4, to=b%s)")
    assert float(text.split("completed in ")[1].split("s")[0]) >= 0


def test_an_operation_without_facts_has_no_brackets(lines):
    with typed.log_operation("bare"):
        pass
    assert lines[0] == ("info", "bare: started")
    assert "(" not in lines[1][1]


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_a_failure_is_logged_and_raised(lines, error):
    with pytest.raises(type(error)), typed.log_operation("copy", n=1):
        raise error
    (level, text) = lines[-1]
    assert level == "error"
    assert text.startswith("copy: failed after ")
    assert text.endswith("(n=1)")
