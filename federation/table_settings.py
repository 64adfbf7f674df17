"""The settings of algorithms for tables and bandits, a part of ``federation.experiment``."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from federation.fields import Float, Int

__all__ = ["TableSettings"]


class TableSettings(BaseModel):
    """What ``Experiment`` has for molar, molar-bandit and meta-ban."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
    )

    family: Literal["linear", "logistic", "poisson"] = Field(
        description="molar: the model: linear, logistic (classes 0 and 1) or poisson (counts)"
    )
    thresholding: Literal["hard", "soft"] = Field(
        description="molar: hard (a coefficient is shared or the site's own) or soft"
    )
    threshold_scale: Float = Field(
        ge=0, description="molar: c, scale of the threshold; 0: every site keeps its own estimate"
    )
    intercept: bool = Field(description="molar: whether models have an intercept")
    site_weights: Literal["precision", "equal"] = Field(
        description="molar: weights of the median: precision (rows over noise variance, as sites "
        "claim them) or equal (a minority of sites cannot move it far, whatever they claim)"
    )
    level: Float = Field(gt=0, lt=1, description="molar: level of confidence intervals")
    bandit_model: Literal["C", "P"] = Field(
        description="molar-bandit: C (each arm has a context; a site has one parameter) or P (a "
        "site sees one context, and each arm has a parameter)"
    )
    arms: Int = Field(
        ge=2,
        le=1000,
        description="molar-bandit, and meta-ban on tables: arms to choose from (K)",
    )
    first_batch: Int = Field(
        ge=1,
        description="molar-bandit: turns in the first batch (H0); batches double from the second "
        "on, and num-rounds is how many there are",
    )
    history: Literal["batch", "all"] = Field(
        description="molar-bandit: rows that a site's own step looks at: those since its last "
        "estimate, or all it ever saw"
    )
    tell_turns: Int = Field(
        ge=1,
        description="molar-bandit, meta-ban: turns that a client tells of together, by sums of "
        "rewards and regrets; the fewer, the more is said of each",
    )
    user_groups: Int = Field(
        ge=0,
        description="meta-ban: groups of each data set's clients, whose right arm depends on the "
        "image, too; 0: it is each client's own",
    )
    nu: Float = Field(gt=1, description="meta-ban: the larger, the larger groups are")
    gamma: Float = Field(
        ge=0,
        lt=1,
        description="meta-ban: the gap between groups: clients agree on an arm whose networks "
        "differ by (nu - 1) / nu gamma at most",
    )
    user_eta: Float = Field(gt=0, description="meta-ban: step size of a client's network (eta_1)")
    meta_eta: Float = Field(gt=0, description="meta-ban: step size of the server's (eta_2)")
    own_weight: Float = Field(
        gt=0,
        description="meta-ban: weight of a row of the client whose turn it is, beside others' of 1",
    )
    user_steps: Int = Field(ge=1, description="meta-ban: a client's steps in its turn (J_1)")
    meta_steps: Int = Field(
        ge=1,
        description="meta-ban: the server's steps in a turn (J_2); in each it asks all clients",
    )
    replay_batch: Int = Field(ge=1, description="meta-ban: rows of a step")
    replay_rows: Int = Field(ge=1, description="meta-ban: last rows that a client keeps")
    target_column: str = Field(description="molar: the table's target, by name")
    task_column: str = Field(
        description="molar: the column that says which site a row is of; each is a client"
    )
