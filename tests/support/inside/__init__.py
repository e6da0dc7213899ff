"""Private parts of fastshard's objects that tests read, replace or break.

One function for each, so that a refactoring changes it here and in no test.
"""
