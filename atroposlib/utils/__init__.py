"""Helpers under the import paths that Atropos's environments use."""
