"""Tables of members: extents and names, samples, orders of positions."""
