"""The supervised demo: every part of the service as a process of its own, on one machine."""
