"""The endpoint plugin that a stock vLLM loads: scores as bytes, under /v1/atropos (docs/vllm-plugin.md)."""

from atroposlib.vllm_plugin.plugin import AtroposPlugin

__all__ = ["AtroposPlugin"]
