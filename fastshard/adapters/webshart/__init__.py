"""The calls of webshart, for code that was written for it."""
