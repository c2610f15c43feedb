"""Caches that are a consistency mechanism: regions, the view of what is in effect, invalidation after commit."""
