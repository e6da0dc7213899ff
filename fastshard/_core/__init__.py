"""The compiled core: without policy, and without the GIL where it takes time."""
