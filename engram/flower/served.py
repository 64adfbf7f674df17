"""A client's evaluation: ``with engram.flower.served(msg, context, net)``."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch
from flwr.app import Message
from torch import Tensor

from engram.core.method import Served
from engram.core.types import Params
from engram.flower.side import USUAL, Side, Site
from engram.settings.errors import Refused


class Serving(Side):
    """The model that serves a client, in its network for the length of a block.

    Args:
        msg: As for ``Side``.
        context: As for ``Side``.
        net: As for ``Side``.
        tune: Trains ``net`` on the client's rows, for methods that serve by fine-tuned models;
            without it, a client that has not trained is served by its first model as it is.
        loss: Returns the loss of ``net`` on these rows, for methods that choose among models.
        site: As for ``Side``.

    Attributes:
        served: The method's models for the client.
        trained: Whether it has trained.
    """

    def __init__(
        self, msg: Any, context: Any, net: Any, *, tune: Callable[[], Any] | None = None,
        loss: Callable[[], float] | None = None, site: Site = USUAL,
    ) -> None:  # fmt: skip
        super().__init__(msg, context, net, site)
        kept, self.trained = self.recall(self.asked.round + 1)
        self.served: Served = self.method.serve(self.received, kept, self.trained)
        self._tune, self._loss, self._open = tune, loss, ExitStack()

    def __enter__(self) -> Self:
        served, name, module = self.served, self.asked.method, self.module
        if served.neighbors is not None:
            words = "serves by votes of rows: take engram.make_client_app for it"
            raise Refused(f"{name} {words}, or fraction_evaluate=0")
        if served.tuned and self._tune is None and self.trained:
            words = "serves this client after fine-tuning: give served(..., tune=) a function"
            raise Refused(f"{name} {words} that trains net on the client's rows")
        if served.weights is not None:
            self._open.callback(self._mixing(served.models, served.weights).remove)
            return self
        module.load(self._least(served.models))
        self._open.enter_context(module.tapped(served.shift))
        if served.tuned and self._tune is not None:
            self._tune()
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()

    def reply(self, num_examples: int, **metrics: float) -> Message:
        """Returns the reply, with the number of rows that the metrics are of."""
        return self.message(num_examples, metrics, {})

    def _least(self, models: tuple[Params, ...]) -> Params:
        """Returns the model with the least loss on the client's rows."""
        if len(models) == 1:
            return models[0]
        if self._loss is None:
            words = "chooses a model by its loss: give served(..., loss=) a function"
            raise Refused(f"{self.asked.method} {words} that returns net's on the client's rows")
        losses = []
        for model in models:
            self.module.load(model)
            losses.append(float(self._loss()))
        return models[losses.index(min(losses))]

    def _mixing(self, models: tuple[Params, ...], weights: Tensor) -> Any:
        """Makes the network return logarithms of mixed probabilities of classes."""

        def mixed(net: Any, args: Any, named: Any, outputs: Tensor) -> Tensor:
            del net
            every = [self.module.call_with(w, args, named).softmax(-1) for w in models]
            return torch.einsum("m,m...->...", weights.to(outputs), torch.stack(every)).log()

        return self.module.net.register_forward_hook(mixed, with_kwargs=True)
