"""webshart's interface."""
