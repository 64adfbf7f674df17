"""Meta-Ban between sites: settings, messages, hosts, strategy, report."""
