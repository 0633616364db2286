"""How groups travel: Atropos's JSON, and the limits of what is read. Never imports torch."""
