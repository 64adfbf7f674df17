"""A Flower app whose clients have models of their own."""
