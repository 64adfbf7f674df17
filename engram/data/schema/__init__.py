"""The schema of a table: a typed description of its columns, which a person can read and edit."""
