"""Records of the five collections, and their parts, as typed objects."""
