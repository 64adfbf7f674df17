"""Cox's model between sites: exchanges of sums, over subjects that stay where they are."""
