"""Release records: their parts about a run and about a site, and the command."""
