"""What one experiment is, checked once, before anything is started."""

import difflib
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from engram.aggregates import Aggregate
from engram.checks import require
from engram.types import LocalRule, LossFn
from federation.algorithms import ALGORITHMS, TABLES
from federation.errors import Refused, brief, one_line
from federation.fields import Float, Int, known_algorithm, known_device, widths
from federation.fingerprint import source_root
from federation.noise import Noise, secret_noise
from federation.protection import check_protection, protected
from federation.server_steps import check_server_step, server_step
from federation.settings import MACHINE, Scalar
from federation.table_settings import TableSettings

__all__ = ["Experiment", "read_defaults"]


_TOLD = 10  # unknown keys that a message names
_MOST_TURNS = 2**16  # of a bandit: some 50 MB for each site

_Widths = Annotated[str, BeforeValidator(widths)]
_Algorithm = Annotated[str, AfterValidator(known_algorithm)]
_Device = Annotated[str, AfterValidator(known_device)]


class Experiment(TableSettings):
    """Everything that determines a run: the same experiment gives the same numbers.

    But for the noise of privacy on nodes, which is secret: see ``federation.noise``.

    Field names with ``_`` written as ``-`` are the keys of ``[tool.flwr.app.config]`` in
    pyproject.toml, whose values are the defaults; this class has none, so that there is one
    place to look. ``out`` and ``resume`` say where results are; all others, what they are.
    """

    algorithm: _Algorithm = Field(
        description="; ".join(
            f"{name} ({meaning})"
            for name, meaning in [*((n, a.meaning) for n, a in ALGORITHMS.items()), *TABLES.items()]
        )
    )
    dataset: str = Field(
        description="digits (comes with the platform), mnist, fashion-mnist, cifar10, cifar100, "
        "cifar100-coarse (20 superclasses), or npz:PATH for arrays of your own; molar: npz:PATH, "
        "csv:PATH, or sparse-linear, sparse-logistic, sparse-poisson (simulated); meta-ban: "
        "several of the first, with commas, or permuted-NAME for other pixels, of which each class "
        "is a client; linear-groups, cosine-groups (simulated); csv:PATH, arms and what they pay"
    )
    data_dir: str = Field(description="folder of torchvision's data sets; downloads go there")
    test_fraction: Float = Field(
        gt=0,
        lt=1,
        description="share of the rows held out for testing, where the data set has "
        "no test rows of its own",
    )
    num_classes: Int = Field(
        ge=0,
        le=10**6,
        description="npz: classes there are, where the rows at hand may lack some of them; 0: as "
        "many as they have",
    )
    partition: Literal["halves", "iid", "dirichlet", "pathological", "natural", "blocks"] = Field(
        description="who holds which rows: halves (half the clients hold the first half of the "
        "classes evenly, the others a little of one of those and much of one of the rest), iid, "
        "dirichlet, pathological, natural (by the data's task column), blocks (the first rows, the "
        "next ones, and so on)"
    )
    num_clients: Int = Field(ge=1, le=10**6, description="clients in the federation")
    rows_per_class: Int = Field(ge=2, description="halves: a for the training rows")
    test_rows_per_class: Int = Field(ge=2, description="halves: a for the test rows")
    dirichlet_alpha: Float = Field(
        gt=0, description="dirichlet: concentration; smaller is more uneven"
    )
    classes_per_client: Int = Field(ge=1, description="pathological: classes a client holds")
    model: Literal["mlp", "cnn", "linear"] = Field(
        description="network: mlp (dense layers), cnn (two convolutions, then dense layers) or "
        "linear (softmax regression)"
    )
    hidden: _Widths = Field(description="widths of the hidden dense layers, with commas")
    num_rounds: Int = Field(ge=1, description="communication rounds")
    clients_per_round: Int = Field(ge=1, description="clients that train in a round (B)")
    shards: Int = Field(
        ge=1,
        description="shards of clients (client i is in shard i mod shards), from each of which "
        "the same number trains in a round; as many as nodes: every node has the same to do",
    )
    local_steps: Int = Field(ge=1, description="local steps of a client in a round (H)")
    batch_size: Int = Field(ge=1, description="rows in each batch of a local step (K)")
    order: Literal["shuffled", "stream"] = Field(
        description="rows of a batch: shuffled (drawn at random, with replacement) or stream (the "
        "client's next ones; a round passes for all clients, whether they train or not, and after "
        "the last row comes the first again)"
    )
    initial_batch_size: Int = Field(
        ge=1, description="local-moml: rows that a memory starts from (K0)"
    )
    alpha: Float = Field(
        ge=0,
        description="adaptation step size; pfedme: inner step size; meta-ban: how much it explores",
    )
    beta: Float = Field(
        gt=0, le=1, description="local-moml: weight of the newest adaptation in the memory"
    )
    eta: Float = Field(gt=0, description="step size of the common model")
    hessian: Literal["exact", "first-order", "finite-difference"] = Field(
        description="how the meta-gradient treats the Hessian: exact, first-order (leaves it out) "
        "or finite-difference"
    )
    memory: Literal["reset", "carry"] = Field(
        description="local-moml: whether memories start anew each round (cross-device) or are "
        "carried over (cross-silo)"
    )
    lambda_: Float = Field(gt=0, description="pfedme: weight of the proximal term")
    inner_steps: Int = Field(ge=1, description="pfedme: steps towards the proximal point")
    server_mix: Float = Field(gt=0, description="pfedme: weight of the round's mean (beta)")
    server_step: Literal["replace", "universal"] = Field(
        description="what becomes of a round's merged model: it replaces the last one; or "
        "(universal) the last one less the merged one is a gradient, of which the universal "
        "ensemble makes the next model, without a step size"
    )
    server_radius: Float = Field(
        gt=0,
        description="universal: radius of the ball around the initial model that models stay in",
    )
    merge: Literal["mean", "median", "trimmed-mean", "krum"] = Field(
        description="what a round's models are merged into: their mean, the median or the "
        "trimmed-mean of each coordinate, or (krum) the one that is nearest to most others; with "
        "any but the mean every client counts alike"
    )
    num_malicious: Int = Field(
        ge=0,
        description="trimmed-mean, krum: clients of a round that may send anything; trimmed-mean "
        "leaves out as many of the lowest and as many of the highest values",
    )
    max_weight: Float = Field(
        ge=1,
        description="largest weight of a client where weights are what clients say of themselves "
        "(fedavg: rows; molar, molar-bandit: rows and noise), in weights of the median client; "
        "what is above counts as that. 1e9: no bound",
    )
    clip: Float = Field(
        ge=0,
        description="largest norm of a client's update (C); longer ones are scaled down to it, by "
        "the client and again by the server. 0: no bound",
    )
    privacy: Literal["none", "local", "central"] = Field(
        description="differential privacy of clients: none, central (the server adds normal noise "
        "to the mean of clipped updates, all of which count alike) or local (each client adds it "
        "to its own before it leaves)"
    )
    noise_multiplier: Float = Field(
        gt=0,
        description="privacy: standard deviation of the noise over clip, on one client's update "
        "(local) or on the sum of all clients' (central)",
    )
    delta: Float = Field(
        gt=0, lt=1, description="privacy: the delta at which the epsilon spent is reported"
    )
    adapt_shots: Int = Field(
        ge=1, description="evaluation: test rows that a client personalizes on"
    )
    adapt_steps: Int = Field(ge=0, description="evaluation: gradient steps on them")
    adapt_lr: Float = Field(gt=0, description="evaluation: their step size")
    eval_every: Int = Field(
        ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    checkpoint_every: Int = Field(ge=1, description="rounds between checkpoints")
    seed: Int = Field(ge=0, lt=2**32, description="root of every random stream")
    timeout: Float = Field(
        gt=0,
        le=10**8,
        description="seconds that a round waits for replies before it goes on without them",
    )
    min_clients: Int = Field(
        ge=1,
        description="clients without whose replies a round does not go on, and a run does not "
        "begin; one that has fewer stops, and can be resumed",
    )
    device: _Device = Field(description="cpu, cuda, or cuda:N")
    cpu_threads: Int = Field(
        ge=1,
        le=256,
        description="torch threads of each process that trains; for small models more than 1 is "
        "slower, by far where processes share the cores",
    )
    memory_budget: Float = Field(
        ge=0,
        le=2**20,
        description="GiB that a process may use to train clients at once; 0: a quarter of what "
        "is free. With less, clients train in smaller blocks: the same numbers, to rounding",
    )
    out: str = Field(description="folder of the run's results; empty: a new one in runs/")
    resume: str = Field(description="folder of a run to go on with; empty: none")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.algorithm in TABLES:
            self._check_tables()
            return self
        require(self.num_classes != 1, "num-classes", self.num_classes, "0, or at least 2")
        require(
            self.clients_per_round <= self.num_clients,
            "clients-per-round",
            self.clients_per_round,
            f"at most num-clients = {self.num_clients}",
        )
        require(
            self.clients_per_round % self.shards == 0,
            "shards",
            self.shards,
            f"a divisor of clients-per-round = {self.clients_per_round}",
        )
        require(
            self.min_clients <= self.clients_per_round,
            "min-clients",
            self.min_clients,
            f"at most clients-per-round = {self.clients_per_round}",
        )
        check_protection(self)
        check_server_step(self)
        self.local_rule(lambda params, batch: next(iter(params.values())).sum())
        self.aggregate()
        return self

    def _check_tables(self) -> None:
        """Refuses what an exchange of estimates does not do."""
        require(
            self.min_clients <= self.num_clients,
            "min-clients",
            self.min_clients,
            f"at most num-clients = {self.num_clients}",
        )
        for key, value, only in (
            ("merge", self.merge, "mean"),
            ("privacy", self.privacy, "none"),
            ("clip", self.clip, 0.0),
            ("server-step", self.server_step, "replace"),
        ):
            require(value == only, key, value, f"{only} for {self.algorithm}")
        if self.algorithm == "meta-ban":
            require(bool(self.hidden_widths), "hidden", self.hidden, "one or more for meta-ban")
        if self.algorithm == "molar-bandit":
            require(self.family == "linear", "family", self.family, "linear for molar-bandit")
            few = self.first_batch <= _MOST_TURNS
            require(few, "first-batch", self.first_batch, f"at most {_MOST_TURNS}")
            most = _MOST_TURNS // self.first_batch
            require(
                self.num_rounds <= most.bit_length(),
                "num-rounds",
                self.num_rounds,
                f"at most {most.bit_length()} for molar-bandit, whose batches double",
            )

    @property
    def rounds(self) -> int:
        """Rounds that a run has."""
        return 1 if self.algorithm == "molar" else self.num_rounds

    @property
    def horizon(self) -> int:
        """Turns that a bandit has in all its rounds."""
        if self.algorithm == "molar-bandit":
            return self.first_batch << (self.num_rounds - 1)
        return self.num_rounds

    @property
    def sources(self) -> list[str]:
        """What ``dataset`` names: one data set, or several where clients are classes."""
        several = self.algorithm == "meta-ban" and not self.dataset.startswith("csv:")
        return self.dataset.split(",") if several else [self.dataset]

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """``hidden`` as numbers."""
        return tuple(int(width) for width in self.hidden.split(",") if width.strip())

    @property
    def keeps_memory(self) -> bool:
        """Whether clients remember their rule's state from one round to the next.

        pFedMe's state is the personal model that it exists for; it is always kept.
        """
        return self.memory == "carry" or self.algorithm == "pfedme"

    def local_rule(self, loss: LossFn) -> LocalRule:
        """Builds the client's part of the algorithm."""
        return ALGORITHMS[self.algorithm].rule(loss, self)

    def aggregate(self, noise: Noise = secret_noise) -> Aggregate:
        """Builds the server's part of the algorithm, with what protects it, and the server's step.

        Args:
            noise: Where the noise of central privacy comes from.
        """
        merged = protected(ALGORITHMS[self.algorithm].aggregate(self), self, noise)
        return server_step(merged, self)

    def on_machine(self, own: Mapping[str, Any]) -> Self:
        """Returns the experiment with a machine's own values of the settings in ``MACHINE``.

        Raises:
            Refused: One of them is impossible.
        """
        return self.from_config(self.to_config() | {k: own[k] for k in MACHINE if k in own})

    def to_config(self) -> dict[str, Scalar]:
        """Returns the settings as ``[tool.flwr.app.config]`` writes them."""
        return self.model_dump(by_alias=True)

    def identity(self) -> dict[str, Scalar]:
        """Returns the settings that bear on the numbers: all but how far, how and where to run."""
        aside = {"num-rounds", "checkpoint-every", "out", "resume", "timeout", "min-clients"}
        aside |= set(MACHINE) - {"data-dir"}
        if self.algorithm == "molar-bandit":  # how far it goes is what its sites are going to see
            aside -= {"num-rounds"}
        return {key: value for key, value in self.to_config().items() if key not in aside}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads a complete, flat mapping with dashed keys, such as Flower's run config.

        Raises:
            Refused: One line that names every unknown, missing, or impossible setting.
        """
        known = [_key(name) for name in cls.model_fields]
        unknown = [key for key in config if key not in known]
        wrong = [_unknown(key, known) for key in unknown[:_TOLD]]
        if len(unknown) > _TOLD:
            wrong.append(f"... {len(unknown)} keys are not settings")
        try:
            experiment = cls.model_validate({k: v for k, v in config.items() if k in known})
        except ValidationError as error:
            wrong += [_one_line(dict(detail)) for detail in error.errors()]
        if wrong:
            raise Refused("; ".join(wrong))
        return experiment


def read_defaults() -> dict[str, Scalar]:
    """Returns ``[tool.flwr.app.config]`` of the pyproject.toml beside this source."""
    with (source_root() / "pyproject.toml").open("rb") as file:
        config: dict[str, Scalar] = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    return config


def _key(field: str) -> str:
    return field.rstrip("_").replace("_", "-")


def _unknown(key: str, known: list[str]) -> str:
    short = one_line(key)
    near = difflib.get_close_matches(short.replace("_", "-"), known, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{short} is not a setting{hint}"


def _one_line(detail: dict[str, Any]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"] or (" must be " in message and not message.startswith("value ")):
        return str(message)  # a check across settings, in the words of engram.checks
    key = str(detail["loc"][0])
    if detail["type"] == "missing":
        return f"{key} is missing"
    message = message.removeprefix("Input should be ").removeprefix("value must be ")
    message = message.removeprefix("String should ").split(", got ")[0]
    return f"{key} must be {message}, got {brief(detail['input'])}"
