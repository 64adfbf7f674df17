"""Methods that PFLlib has, too, and the settings by which both do the same."""

from typing import Any, Final, Literal, NamedTuple

ETA: Final = 0.05  # step size of every local step
PERSONAL_STEPS: Final = 50  # of fine-tuning, where a method leaves that open

Compared = Literal["common", "fine-tuned", "personal"]


class Pair(NamedTuple):
    """A method that both have.

    Attributes:
        server: PFLlib's module in ``flcore.servers``, and its class there.
        compared: Which model is: the common one, the same after our fine-tuning, or each client's.
        ours: Settings of ours.
        theirs: Settings of PFLlib's, by the names that its command line stores them under.
        split: Whether PFLlib's main parts the network into a base and a head.
        passes: Times that PFLlib goes through a round's batches: ours takes as many steps.
    """

    server: str
    compared: Compared
    ours: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes
    theirs: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default
    split: bool = False
    passes: int = 1


PAIRS: Final = {
    "local": Pair("serverlocal.Local", "personal"),
    "fedavg": Pair("serveravg.FedAvg", "common", split=True),
    "fedprox": Pair("serverprox.FedProx", "common", {"mu": 0.1}, {"mu": 0.1}),
    "scaffold": Pair("serverscaffold.SCAFFOLD", "common", {}, {"server_learning_rate": 1.0}),
    "feddyn": Pair("serverdyn.FedDyn", "common", {"alpha": 0.1}, {"alpha": 0.1}),
    "ditto": Pair(
        "serverditto.Ditto", "personal", {"lambda_": 1.0}, {"mu": 1.0, "plocal_epochs": 1}
    ),
    "apfl": Pair("serverapfl.APFL", "personal", {"alpha": 0.5}, {"alpha": 0.5}),
    "pfedme": Pair(
        "serverpFedMe.pFedMe",
        "personal",
        {"alpha": 0.05, "lambda_": 15.0, "inner_steps": 5, "server_mix": 1.0},
        {"p_learning_rate": 0.05, "lamda": 15.0, "K": 5, "beta": 1.0},
    ),
    "per-fedavg": Pair(
        "serverperavg.PerAvg",
        "fine-tuned",
        {"alpha": ETA, "hessian": "first-order", "adapt_steps": 1},
    ),
    "fedper": Pair("serverper.FedPer", "personal", split=True),
    "lg-fedavg": Pair("serverlg.LG_FedAvg", "personal", split=True),
    "fedrep": Pair(
        "serverrep.FedRep",
        "personal",
        {"personal_share": 0.5},
        {"plocal_epochs": 1},
        split=True,
        passes=2,
    ),
    "fedrod": Pair("serverrod.FedROD", "personal", {"gamma": 1.0}, {}, split=True),
    "fedproto": Pair("serverproto.FedProto", "personal", {"lambda_": 1.0}, {"lamda": 1.0}, True),
    "fedpac": Pair(
        "serverpac.FedPAC",
        "personal",
        {"lambda_": 1.0, "head_share": 0.5},
        {"lamda": 1.0},
        split=True,
        passes=2,
    ),
    "feddbe": Pair(
        "serverdbe.FedDBE",
        "personal",
        {"kappa": 10.0},
        {"kl_weight": 10.0, "momentum": 1.0},
        split=True,
    ),
    "gpfl": Pair(
        "servergpfl.GPFL",
        "personal",
        # Its distance is a norm over all rows of a batch, of which there are ten.
        {"lambda_": 0.01 * 10**0.5, "mu": 0.1},
        {"lamda": 0.01, "mu": 0.1},
        split=True,
    ),
    "fedala": Pair(
        "serverala.FedALA",
        "personal",
        {"weight_eta": 1.0, "weight_share": 0.5, "layers": 1},
        {"eta": 1.0, "rand_percent": 80, "layer_idx": 2},
        passes=2,
    ),
    "fedamp": Pair(
        "serveramp.FedAMP",
        "personal",
        {"lambda_": 1.0, "attraction": 0.04, "sigma": 10.0},
        # Its weights and its term are these of ours times sigma, as in the paper.
        {"lamda": 0.4, "alphaK": 0.4, "sigma": 10.0},
    ),
    "fedfomo": Pair("serverfomo.FedFomo", "personal", {"models": 5}, {"M": 5}),
    "fedas": Pair(
        "serveras.FedAS", "personal", {"align_eta": 0.01, "align_share": 0.5}, {}, True, 2
    ),
    "fedbabu": Pair("serverbabu.FedBABU", "fine-tuned", {}, {"fine_tuning_epochs": 0}, True),
}
"""By our names. Both are given ETA, and batches of one size."""
