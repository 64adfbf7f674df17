"""Reports, one file per family of methods, imported when it is asked for."""
