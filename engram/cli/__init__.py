"""The `engram` command, one file per group of subcommands."""
