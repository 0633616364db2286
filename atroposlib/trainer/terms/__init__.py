"""The losses of a run as a step takes them: what each reads of a sequence, counts, and computes."""
