"""Servers of the AT Protocol on this machine, and one that answers anything."""
