"""atroposlib: the async teacher-logprob service for distilling language models."""

__version__ = "0.5.0.dev0"
