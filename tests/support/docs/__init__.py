"""Pages of the documentation as programs, and the hosts that they name."""
