"""What the users of bandits meet: data sets, ratings, and drawn groups, as `world` has it."""
