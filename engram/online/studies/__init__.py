"""Universal online learning with gradient variations (Yan, Zhao, Zhou 2023)."""
