"""Names of the option namespaces that command line and YAML share."""

from __future__ import annotations

ENV_NAMESPACE = "env"
OPENAI_NAMESPACE = "openai"
NAMESPACE_SEP = "."
