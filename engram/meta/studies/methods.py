"""The methods that the MOML paper compares, each as one call of its rule."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from torch import Tensor

from engram.core.derivatives import LossWithDerivatives
from engram.meta.bspiderboost import bsgd, bspiderboost
from engram.meta.moml import constant_steps, moml_v1, moml_v2
from engram.meta.nasa import nasa
from engram.meta.protonet import protonet
from engram.meta.single_node import MetaRule, local_moml, maml, reptile


class RuleArguments(NamedTuple):
    """The arguments that all methods have in common."""

    loss: LossWithDerivatives  # the stacked loss that models are adapted to
    # ProtoNet's loss, to which no model is adapted; None without classes.
    matching: LossWithDerivatives | None
    tasks: int  # n
    tasks_per_step: int  # B
    batch_size: int  # K, rows of a batch
    alpha: float  # adaptation step size
    hessian: str  # one of ``meta_gradient.HESSIANS``

    @property
    def few(self) -> dict[str, Any]:
        """Arguments for how much an iteration draws."""
        return {"tasks_per_step": self.tasks_per_step, "batch_size": self.batch_size}

    @property
    def maml(self) -> dict[str, Any]:
        """Arguments of MAML and of the methods that extend it."""
        return {"alpha": self.alpha, "hessian": self.hessian}


def maml_batches(hessian: str) -> int:
    """Number of batches that MAML takes of a task in an iteration."""
    return 2 if hessian == "first-order" else 3


Build = Callable[[RuleArguments, Tensor, Tensor], MetaRule[Any]]


class MetaLearner(NamedTuple):
    """A method of the comparison."""

    title: str  # its name in the paper's tables
    build: Build  # ``(arguments, beta, eta) -> rule``; beta and eta are (r,), one for each run
    # Values of beta that tuning tries; those of Sec. 6.1's code, or 1 if it has none.
    betas: tuple[float, ...] = (1.0,)
    decays: bool = True  # whether eta is divided by 10 after 75 % of the iterations (Sec. 6.1)
    # Local steps in an iteration, each of which the paper counts as an iteration.
    local_steps: int = 1


_BETAS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
_H: Final = 5


def _moml_v1(s: RuleArguments, beta: Tensor, eta: Tensor) -> MetaRule[Any]:
    return moml_v1(s.loss, tasks=s.tasks, **s.few, **s.maml, beta=beta, eta=eta)


def _moml_v2(s: RuleArguments, beta: Tensor, eta: Tensor) -> MetaRule[Any]:
    steps = constant_steps(beta=beta, eta=eta)
    return moml_v2(s.loss, tasks=s.tasks, **s.few, **s.maml, steps=steps)


def _local_moml(s: RuleArguments, beta: Tensor, eta: Tensor) -> MetaRule[Any]:
    # H = 5 and K0 = 2 K, as in Sec. 6.1.
    moml = partial(local_moml, local_steps=_H, initial_batch_size=2 * s.batch_size)
    return moml(s.loss, **s.few, **s.maml, beta=beta, eta=eta)


def _nasa(s: RuleArguments, beta: Tensor, eta: Tensor) -> MetaRule[Any]:
    # The paper does not give gamma; its authors' code has 0.1.
    size = s.batch_size
    return nasa(s.loss, tasks=s.tasks, batch_size=size, **s.maml, beta=beta, gamma=0.1, eta=eta)


def _bspiderboost(s: RuleArguments, _: Tensor, eta: Tensor) -> MetaRule[Any]:
    # A large batch of 10 tasks every third iteration, as in the authors' code.
    large = min(max(10, s.tasks_per_step), s.tasks)
    return bspiderboost(s.loss, **s.few, **s.maml, large_tasks=large, period=3, eta=eta)


def _reptile(s: RuleArguments, _: Tensor, eta: Tensor) -> MetaRule[Any]:
    # eta multiplies the sum of the local gradients, (w - w_i) / alpha (Nichol et al., Sec. 4). As
    # many local steps as MAML's batches, so that both see as many rows.
    steps = maml_batches(s.hessian)
    return reptile(s.loss, **s.few, alpha=s.alpha, eta=eta / s.alpha, local_steps=steps)


def _protonet(s: RuleArguments, _: Tensor, eta: Tensor) -> MetaRule[Any]:
    if s.matching is None:
        raise ValueError("protonet needs classes, which this problem does not have")
    size = s.batch_size
    return protonet(s.matching, tasks_per_step=s.tasks_per_step, support=size, query=size, eta=eta)


METHODS: Final[dict[str, MetaLearner]] = {
    "maml": MetaLearner("MAML", lambda s, _, eta: maml(s.loss, **s.few, **s.maml, eta=eta)),
    "bsgd": MetaLearner("BSGD", lambda s, _, eta: bsgd(s.loss, **s.few, **s.maml, eta=eta)),
    "reptile": MetaLearner("Reptile", _reptile),
    "protonet": MetaLearner("ProtoNet", _protonet),
    "nasa": MetaLearner("NASA", _nasa, _BETAS),
    "bspiderboost": MetaLearner("BSpiderBoost", _bspiderboost, decays=False),
    "moml-v1": MetaLearner("MOML v1", _moml_v1, _BETAS),
    "moml-v2": MetaLearner("MOML v2", _moml_v2, _BETAS),
    "local-moml": MetaLearner("LocalMOML", _local_moml, _BETAS, local_steps=_H),
}
