"""Memory-based optimization for MAML (MOML, Sec. 6): few-shot regression and classification."""
