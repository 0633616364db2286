"""Clients of teacher servers and the parsing of their scores. Never imports torch."""
