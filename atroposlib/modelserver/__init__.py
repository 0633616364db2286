"""A small transformers-backed server that speaks a stock vLLM's routes.

It is the default teacher and student where no vLLM can run, and the oracle of the tests.
"""
