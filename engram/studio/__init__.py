"""The board: a web page over a folder of runs, and over a live federation. It only reads."""
