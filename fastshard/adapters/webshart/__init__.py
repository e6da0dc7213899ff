"""webshart's interface, for code written for it."""
