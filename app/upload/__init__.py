"""Uploads: places, admission by counters, bytes on their way in."""
