"""How typed datasets read: origins, decoders, iterations, shards, exports."""
