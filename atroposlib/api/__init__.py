"""The trajectory API: Atropos's routes and our own over one queue. Never imports torch."""
