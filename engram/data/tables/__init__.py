"""Tables of a federation: frames, CSV rows, text categories, summaries of columns."""
