"""Writing new tokens' entries into the pages of the cache."""

from cutaway.kernels.store.plain import scaled, store

__all__ = ["scaled", "store"]
