"""Offline scoring: a file of rows in, shards of frames with teacher targets out (docs/offline-scoring.md)."""
