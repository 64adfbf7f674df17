"""Every method in a Flower app of your own, with your own training loop.

In the ServerApp a strategy; in the ClientApp a block around the loop, and one around the scoring::

    result = Ditto(Net(), lambda_=1.0).start(grid=grid, num_rounds=50)

    with client(msg, context, net) as session:   # net has the received model, and what was kept
        fit(net, session.batches(loader))
    return session.reply(num_examples=len(rows))

    with served(msg, context, net) as session:   # net is the model that serves this client
        accuracy = score(net, test)
    return session.reply(num_examples=len(test), accuracy=accuracy)

Or leave the ClientApp as it is, but for ``ClientApp(mods=[mod])``: see ``engram.flower.mods``. The
strategies are in ``engram.strategies``.
"""

from engram.flower.mods import Mod, batches
from engram.flower.served import Serving as served  # noqa: N813 - used as a function is
from engram.flower.session import Session as client  # noqa: N813 - likewise
from engram.flower.side import Site

__all__ = ["Mod", "Site", "batches", "client", "mod", "served"]

mod = Mod()
"""The mod of clients that have no terms of their own."""
