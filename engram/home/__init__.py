"""Models that leave the platform: exported, made for newcomers, and used to predict."""
