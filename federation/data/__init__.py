"""Which data there are, and which client holds which rows."""
