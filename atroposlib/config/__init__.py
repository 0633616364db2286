"""Configuration models and the merge of defaults, YAML and command line. Never imports torch."""
