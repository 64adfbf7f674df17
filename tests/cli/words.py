"""Words of commands that take little time."""


def let(*sets):
    """Returns settings as a command takes them."""
    return [word for pair in sets for word in ("--set", pair)]


SETS = let("num-rounds=4", "clients-per-round=4", "local-steps=2", "hidden=8")
SETS += let("eval-every=2", "checkpoint-every=2")
