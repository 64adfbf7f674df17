"""The settings that methods share, in groups, each of which checks itself."""
