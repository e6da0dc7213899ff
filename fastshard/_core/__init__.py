"""The compiled core: no policy; long work releases the GIL."""
