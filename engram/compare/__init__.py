"""Methods side by side: plans, references, statistics, tables and plots."""
