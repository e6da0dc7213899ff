from fastshard.typed.atmosphere.at_uri import AtUri as AtUri

__all__ = ["AtUri"]
