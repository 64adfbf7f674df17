"""Reports of runs as pages for a browser, each in one file that needs nothing else."""
