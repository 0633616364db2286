"""The `atropos` command: thin subcommands over settings classes. Imports nothing heavy."""
