"""LocalMOML. Wang, Yuan, Ying, Yang. JMLR 2023. Equations are of that paper."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from engram.core.checks import anywhere
from engram.core.derivatives import LossWithDerivatives
from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Search, Step, method
from engram.core.slots import kinds_of, replace, sends
from engram.core.tree import interpolate
from engram.meta.meta_gradient import meta_gradient

Hessian = Annotated[
    Literal["exact", "first-order", "finite-difference"],
    "how the meta-gradient treats the Hessian: exact, first-order (leaves it out) or "
    "finite-difference",
]


@method("local-moml", source="Wang et al., JMLR 2023, Alg. 3", compared=True)
class LocalMoml:
    """Memory-based meta-learning; memory reset or carried."""

    alpha: Annotated[float, Ge(0), Search(1e-3, 1, log=True), "adaptation step size"] = 0.01
    beta: Annotated[
        float, Gt(0), Le(1), Search(0.05, 1), "weight of the newest adaptation in the memory"
    ] = 0.5
    eta: Annotated[Step, "step size of the common model"] = 0.05
    hessian: Hessian = "first-order"
    memory: Annotated[
        Literal["reset", "carry"],
        "whether memories start anew each round (cross-device) or are carried over (cross-silo)",
    ] = "reset"
    initial_batch_size: Annotated[int, Ge(1), "rows that a memory starts from (K0)"] = 5

    def build(self, context: Context) -> Method:
        """Builds Alg. 3; u is the client's memory, Li the loss of a step's i-th batch.

            u <- (1 - beta) u + beta (w - alpha grad L1(w))             (6)
            w <- w - eta (I - alpha hess L2(w)) grad L3(u)              (7)

        First-order steps have no second batch. A client without a memory starts from ``u = w -
        alpha grad L0(w)`` (Alg. 3, line 6), in every round if memories are reset. If they are
        carried over, Alg. 3 says only that u comes from the previous round; a client's first round
        starts likewise. With ``beta = 1`` the past is forgotten, and this is Per-FedAvg (Sec. 5.1).

        A client is served by w after fine-tuning, which is what w is trained for.
        """
        o = context.objective
        loss = LossWithDerivatives(o.loss, o.gradient, o.hessian_product, leading=0)
        meta = meta_gradient(loss, self.alpha, self.hessian)
        remembers = anywhere(self.beta < 1)

        def begin(received, kept, batch):
            w = received["model"]
            if kept:
                return kept | {"model": w}
            # With beta = 1 the first step replaces u whatever it was, and no rows are drawn.
            return {"model": w, "memory": w if batch is None else meta.adapt(w, batch)}

        def direction(work, batches):
            first, *others = batches
            w = work["model"]
            u = interpolate(work["memory"], meta.adapt(w, first), self.beta)
            return {"model": meta.at(w, u, others)}, work | {"memory": u}

        def end(received, work):
            kept = {"memory": work["memory"]} if self.memory == "carry" and remembers else {}
            return {"model": work["model"]}, kept

        phase = Phase(
            direction,
            self.eta,
            batches=1 + meta.batches,
            affine=self.hessian != "finite-difference",  # which takes norms
            one_gradient_per_batch=meta.batches == 1,
        )
        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace)),
            Client(
                begin,
                phases=(phase,),
                end=end,
                sends={"model"},
                initial_rows=self.initial_batch_size if remembers else 0,
            ),
            serve=lambda received, kept, trained: Served((received["model"],), tuned=True),
            kinds=kinds_of(models="model memory"),
        )
