"""MOLAR between sites: settings, messages, hosts, strategies, reports."""
