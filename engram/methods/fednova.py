"""FedNova. Wang, Liu, Liang, Joshi, Poor. NeurIPS 2020."""

import torch

from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import method
from engram.core.slots import kinds_of, pick, sends
from engram.core.tree import add_scaled, multiplied
from engram.methods.fedavg import FedAvg


@method("fednova", source="Wang et al., NeurIPS 2020, Alg. 1")
class FedNova(FedAvg):
    """FedAvg by changes per step, for clients that take different numbers of steps."""

    def build(self, context: Context) -> Method:
        """Builds the method for the p_i, shares of rows, and the steps t_i that clients take.

            w_i <- w_i - eta grad L(w_i)                        t_i times, from w_i = w
            w <- w + (sum_i p_i t_i) sum_i p_i (w_i - w) / t_i

        These are plain steps, which the paper weighs alike: its ``|a_i|_1`` is t_i. An optimizer
        with momentum, whose steps it weighs by how far they carry, is normalized by t_i, too, since
        a method does not know which optimizer moves its models. Running statistics are averaged.
        Clients receive the former mean of t_i, which they do not use: theirs begin at its zero.
        """
        gradient, learned = context.objective.gradient, context.network.learned

        def scaled(change, factor):
            return change | multiplied(pick(change, learned), factor)

        def begin(received, kept, batch):
            steps = torch.zeros_like(received["steps"])
            return {"model": received["model"], "start": received["model"], "steps": steps}

        def direction(work, batches):
            d = {"model": gradient(work["model"], batches[0])}
            return d, work | {"steps": work["steps"] + 1}

        def end(received, work):
            change = add_scaled(work["model"], -1.0, work["start"])
            return {"change": scaled(change, 1 / work["steps"]), "steps": work["steps"]}, {}

        def merge(server, mean):
            change, steps = mean.slots["change"], mean.slots["steps"]
            return {
                "model": add_scaled(server["model"], 1.0, scaled(change, steps)),
                "steps": steps,
            }

        return (
            super()
            .build(context)
            ._replace(
                server=Server(
                    {"model": context.network.initial, "steps": torch.ones(())},
                    sends("model", "steps"),
                    FromMean(merge, "rows", steps=True),
                ),
                client=Client(
                    begin,
                    phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                    end=end,
                    sends={"change", "steps"},
                ),
                kinds=kinds_of(models="model start", differences="change", statistics="steps"),
                claims={"steps": "amount"},
            )
        )
