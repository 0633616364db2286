"""The queue between environments and trainers: one protocol, several engines. Never imports torch."""
