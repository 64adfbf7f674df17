"""Settings as they are given by name: for editors and type checkers.

Written from the settings' classes by ``python -m tests.federation.pyproject_tables``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

MethodName: TypeAlias = Literal["local-moml", "per-fedavg", "apfl", "cfl", "ditto", "fedadagrad", "fedadam", "fedala", "fedalt", "fedamp", "fedas", "fedavg", "fedbabu", "fedbn", "feddbe", "feddyn", "fedem", "fedfomo", "fedpac", "fedper", "fedproto", "fedprox", "fedrep", "fedrod", "fedyogi", "floco", "gpfl", "ifca", "knn-per", "lg-fedavg", "local", "mr-mtl", "pfedhn", "pfedme", "scaffold", "meta-ban", "molar", "molar-bandit"] | str

class Given(TypedDict, total=False):
    """Settings that methods share, and those that are some methods' own."""

    schema: str
    """tables with named columns: lines of a schema, as columns.visit = {kind = "date"}, or a
    file of them."""
    strict: bool
    """tables with named columns: whether a column that may be several things is refused;
    otherwise the proposal is taken."""
    dataset: str
    """digits (comes with the platform), mnist, fashion-mnist, cifar10, cifar100,
    cifar100-coarse (20 superclasses); hf:NAME (of the Hugging Face Hub); of your own npz:PATH,
    npy:FOLDER, csv:PATH, xlsx:PATH (Excel), images:FOLDER, parquet:PATH, arrow:PATH; of methods
    for tables: npz:PATH, csv:PATH, xlsx:PATH, or sparse-linear, sparse-logistic, sparse-poisson
    (simulated); of methods in which clients are classes of images: several of the first, with
    commas, or permuted-NAME for other pixels; linear-groups, cosine-groups (simulated);
    csv:PATH, arms and what they pay."""
    test_fraction: float
    """share of the rows held out for testing, where the data set has no test rows of its
    own."""
    num_classes: int
    """your own data: number of classes, if the rows may lack some; 0: as many as the rows
    have."""
    partition: Literal["halves", "iid", "dirichlet", "pathological", "natural", "blocks"]
    """which client holds which rows: halves (half the clients hold the first half of the
    classes evenly, the others few rows of one of those and many of one of the rest), iid,
    dirichlet, pathological, natural (by the data's task column; the default where there is
    one), blocks (of consecutive rows)."""
    too_few_rows: Literal["leave-out", "refuse"]
    """what is done with clients that have too few rows to train, or to be scored: leave-out (of
    training, or of scores, by name) or refuse (the run)."""
    num_clients: int
    """clients in the federation; by default those that rows name."""
    rows_per_class: int
    """halves: training rows of each class (a)."""
    test_rows_per_class: int
    """halves: test rows of each class (a)."""
    dirichlet_alpha: float
    """dirichlet: concentration; smaller is more uneven."""
    classes_per_client: int
    """pathological: classes a client holds."""
    target_column: str
    """csv, parquet, arrow, hf, tables: the target, by name."""
    task_column: str
    """the column, or array of npz and npy, that names a row's client."""
    input_columns: str
    """csv, parquet, arrow, hf, tables: the columns of inputs, by name, with commas; empty: all
    others."""
    optional_columns: str
    """those of input-columns that tables of some clients may lack, each with the value that
    stands for it there, such as dose=2.5; ward=north: they are missing in all rows of such a
    table."""
    text_column: str
    """csv, parquet, arrow, hf, data frames: the column of texts that networks take as rows of
    tokens, alone; empty: none."""
    tokenizer: str
    """what makes tokens of text-column: words or characters, the commonest in training rows; or
    a file, a tokenizer.json or one word a line."""
    text_length: int
    """tokens of a text that count; fewer are padded with 0."""
    vocabulary_size: int
    """most tokens of a vocabulary; networks for texts have 2 more, for padding (0) and for what
    is unknown (1)."""
    least_count: int
    """tokenizer words or characters: training rows of a client in which a word must be to be
    told by its node."""
    categories: str
    """csv, parquet, arrow, hf, images: values that columns of text may have, such as
    color=red|blue; size=small|large, and class=cat|dog for folders of images; of arrays, the
    classes, as y=cat|dog; empty: those in the data."""
    missing: Literal["refuse", "median", "indicator"]
    """csv, data frames, and tables of parquet, arrow and hf: what is done where a value is
    missing: refuse, median (of the client's training rows; of text, the commonest), indicator
    (0, and a column that says where)."""
    missing_values: str
    """likewise: texts and numbers that stand for a missing value besides empty cells, such as
    ?|-999."""
    images: Literal["auto", "none", "grey", "channels-last", "alpha"]
    """which rows of your own are images, which networks take as (channels, height, width): auto
    (grey levels, uint8, of two axes, or of three with 1 or 3 channels; and all rows for cnn,
    resnet and torchvision's), none (rows keep their shape), grey (rows are (height, width)),
    channels-last (rows are (height, width, channels)), alpha (likewise, with the transparency
    of image files as the last channel; else it is composed over white)."""
    standardize: Literal["auto", "federation", "client", "none"]
    """whether networks take columns of numbers less their mean, over their standard deviation:
    those of all clients' training rows (federation), of the client's own (client), or not
    (none); auto: federation for the columns of csv, parquet, arrow, hf and data frames, and not
    for arrays; with privacy, client (example: none), since nothing is told without noise.
    Targets of task regression are standardized in training by federation, unless a loss of
    yours, privacy or none is set."""
    model: str | Callable[..., Any]
    """network: mlp (dense layers), cnn (two convolutions, then dense layers) or linear (softmax
    regression); resnet (for images), lstm or transformer (for characters); text-mean or text-
    cnn (for texts); torchvision:NAME, such as torchvision:resnet18; or one of your own, by its
    name."""
    hidden: str
    """widths of the hidden dense layers, with commas; of the stages of resnet (16,32,64:
    ResNet-8), and of the layers of lstm and transformer; of text-mean and text-cnn the first is
    that of the embedding."""
    task: str
    """what it learns: classification, regression, multi-label or next-token."""
    loss: str | Callable[..., Any]
    """a loss of your own, by its name, in place of the task's."""
    norm: Literal["batch", "group"]
    """what a network with batch norm has: batch, or group (group norm, of two groups, in place
    of it)."""
    statistics: Literal["average", "local", "fixed"]
    """running statistics of batch norm: average (of the clients' ones), local (each client
    keeps its own) or fixed (they stay, and are used in training, too)."""
    personal: str
    """parameters that each client keeps to itself, as patterns of their names with commas, such
    as head.*; the others are shared. Empty: none, or the method's part."""
    share: str
    """parameters that clients share, likewise; all others are personal."""
    num_rounds: int
    """communication rounds."""
    eval_every: int
    """rounds between evaluations; the last round is always evaluated."""
    checkpoint_every: int
    """rounds between checkpoints."""
    seed: int
    """root of every random stream."""
    timeout: float
    """seconds that a round waits for replies before it goes on without them."""
    min_clients: int
    """fewest clients with which a run begins, and fewest replies of a round; with fewer the run
    stops, and can be resumed; 0: on nodes, a run begins with all that have enough rows, and a
    round needs one."""
    start_from: str
    """folder of a run from whose last models this one starts: those of the server, and what it
    keeps for each client, where the method has the same; what clients keep, and means of it,
    begin anew. Empty: from the initial models."""
    participation: str
    """folder of a run whose participation a run in one process repeats: in each round, the
    clients that took part there; empty: cohorts are drawn."""
    without: str
    """clients that have no part in the run, as if they had never been members, by number, with
    commas; empty: none."""
    clients_per_round: int
    """clients that train in a round (B); by default at most those there are."""
    sampling: Literal["fixed", "poisson", "without-replacement"]
    """how a round's cohort is drawn: fixed (clients-per-round different clients, by the seed),
    poisson (each client takes part with probability clients-per-round / num-clients,
    independently and in secret, so that a round may have none) or without-replacement (clients-
    per-round different ones, in secret)."""
    shards: int
    """shards of clients (client i is in shard i mod shards), from each of which the same number
    trains in a round; with as many shards as nodes, all have equal work."""
    local_steps: int
    """local steps of a client in a round (H)."""
    local_epochs: int
    """epochs of a client in a round, in place of local-steps: each of a step's batches goes
    once through all of the client's rows, in random order; the last one may be smaller. 0:
    local-steps."""
    batch_size: int
    """rows in each batch of a local step (K)."""
    order: Literal["shuffled", "stream"]
    """rows of a batch: shuffled (drawn at random, with replacement) or stream (the client's
    next ones; a round passes for all clients, whether they train or not, and after the last row
    comes the first again)."""
    augment: str | Callable[..., Any]
    """how training rows are changed at random each time that they are drawn: flip-crop
    (images), or an augmentation of your own, by its name; empty: not at all."""
    optimizer: str | Callable[..., Any]
    """what moves models along the directions of the local steps: sgd, momentum, adam, adamw, or
    an optimizer of your own, by its name."""
    momentum: float
    """momentum: its weight; adam and adamw: their beta1."""
    weight_decay: float | Mapping[str, float]
    """multiple of the parameters added to their gradients; adamw: subtracted from them, times
    the step size."""
    eta_by: str
    """step sizes of parameters whose names match patterns, the first that does, as in
    0.*=0.03,*.bias=0.1; in files and Python a table, eta = {"0.*" = 0.03}; others: eta."""
    weight_decay_by: str
    """weight decay of parameters likewise; others: weight-decay."""
    gradient_clip: float
    """largest norm of a local step's gradient; 0: no bound."""
    optimizer_state: Literal["fresh", "kept"]
    """whether optimizers start anew each round (fresh), or each client keeps the state of its
    own (kept)."""
    schedule: str | Callable[..., Any]
    """the step size over the rounds: constant, cosine (towards 0 after the last one), step (a
    tenth after half of them, a hundredth after three quarters), or a schedule of your own, by
    its name."""
    clock: str
    """simulated time: drawn (each client's speed and bandwidth, by the settings below) or a CSV
    file with a line for each client; empty: none."""
    step_seconds: float
    """clock drawn: simulated seconds of a local step of the median client."""
    bandwidth: float
    """clock drawn: bytes a second of the median client, in both directions."""
    speed_spread: float
    """clock drawn: standard deviation of the logarithm of clients' speeds, and of their
    bandwidths."""
    stragglers: float
    """clock drawn: share of clients that are slowdown times slower, in steps and bytes."""
    slowdown: float
    """clock drawn: how many times slower stragglers are."""
    deadline: float
    """simulated seconds after which a round goes on without the clients that have not answered;
    0: none."""
    over_selection: float
    """clients asked beyond clients-per-round, as a share of it; a round on the clock ends when
    clients-per-round have answered, and goes on without the others."""
    synchrony: Literal["synchronous", "buffered"]
    """whether a round waits for all that it asked (synchronous), or for any buffer-size updates
    while clients-per-round clients are at work all the time (buffered: FedBuff; an update
    counts 1/sqrt(1 + t) if t rounds have ended since its client began)."""
    buffer_size: int
    """buffered: updates that a round merges (K); by default at most clients-per-round."""
    compress: Literal["none", "8-bit", "4-bit", "top-k", "low-rank"]
    """how models travel, in both directions: none (as they are), 8-bit or 4-bit (rounded at
    random to so many bits), top-k (the largest changes alone) or low-rank (changes as products
    of thin matrices). Clients keep what was left out, and send it later."""
    compress_share: float
    """top-k: share of the changes of an array that is sent."""
    compress_rank: int
    """low-rank: rank of the changes of a matrix."""
    merge: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "centered-clipping", "nearest-mixing"]
    """what a round's models are merged into: their mean, the median or the trimmed-mean of each
    coordinate, (krum) the one that is nearest to most others, (multi-krum) the mean of all but
    num-malicious such ones, the geometric-median, (centered-clipping) a mean of changes that
    are clipped around the median, or (nearest-mixing) the trimmed-mean of mixtures, each of a
    model and all but num-malicious of the others, the nearest ones; with any but the mean every
    client counts alike. Where a server sees every update, there is the mean, and multi-krum,
    which leaves out the others."""
    weighting: Literal["rows", "clients", "paper"]
    """what a client counts in a round's mean: its training rows (rows, as FedAvg does), the
    same as every other (clients), or what the method's paper says (paper)."""
    num_malicious: int
    """trimmed-mean, nearest-mixing, krum, multi-krum: clients of a round that may send
    anything; the first two leave out as many of the lowest and of the highest values."""
    bucket_size: int
    """where merge is not mean: clients whose mean counts as one, drawn anew in each round, so
    that clients whose data differ are not taken for malicious ones. 1: none."""
    max_weight: float
    """largest weight of a client where weights are what clients say of themselves (rows, or
    rows and noise), in weights of the median client; larger ones are cut to it. 1e9: no
    bound."""
    max_norm: float
    """largest norm of a client's update, in norms of the round's median client; longer ones are
    scaled down to it. 1e9: no bound. It acts where merge is mean, clip is 0, and rows come in
    no order."""
    clip: float
    """largest norm of a client's update (C); longer ones are scaled down to it, by the client
    and again by the server. With privacy=example, of the gradient of a row (in MOLAR and
    MOLARB, of the row). 0: no bound."""
    clip_quantile: float
    """central privacy: the quantile of the norms of clients' updates that the bound follows
    from round to round, from clip on; 0: the bound stays clip."""
    privacy: Literal["none", "local", "central", "example"]
    """differential privacy of clients: none, central (the server adds normal noise to the mean
    of clipped updates, all of which count alike) or local (each client adds it to its own
    before it leaves, and all count alike); or of a client's single rows: example (each client
    adds it to the sums of its rows' clipped gradients)."""
    noise_multiplier: float
    """privacy: standard deviation of the noise over clip, on one client's update (local), on
    the sum of all clients' (central), or on a sum over rows (example)."""
    epsilon: float
    """privacy: the epsilon that all rounds together may cost, for which noise-multiplier is
    solved; 0: noise-multiplier is as given."""
    delta: float
    """privacy: the delta at which the epsilon spent is reported."""
    aggregation: Literal["plain", "secure"]
    """what the server learns of a round's updates: each one (plain), or their sum alone
    (secure: clients mask theirs; clip must be set)."""
    secure_threshold: float
    """secure: the share of a round's sites above which they must stay until its end; as many of
    them together could unmask one, and fewer cannot."""
    server_step: Literal["replace", "universal"]
    """how the next model follows from a round's merged model: replace (it is the merged one) or
    universal (the universal ensemble, which has no step size, takes the last model less the
    merged one as a gradient)."""
    server_radius: float
    """universal: radius of the ball around the initial model that models stay in."""
    attack: Literal["none", "sign-flip", "scaled", "alie", "ipm", "label-flip", "backdoor", "false-rows", "false-statistics", "false-scores"]
    """what attackers do, in a simulation that measures how much harm it does: see the
    documentation's page on robustness."""
    attackers: float
    """share of the clients that attack, which the seed draws."""
    attack_scale: float
    """how many times as far as their attack says attackers' updates go."""
    protocol: Literal["standard", "few-shot"]
    """evaluation: standard (personal models are made from training rows alone, and scored on
    all test rows) or few-shot (a client fine-tunes on adapt-shots of its test rows, and is
    scored on its other ones)."""
    validation_fraction: float
    """evaluation, standard: share of each client's training rows that it does not train on, but
    is scored on as well, to choose settings and rounds by; 0: none."""
    unseen_clients: int
    """evaluation: number of clients that never train, and are scored apart."""
    unseen: str
    """evaluation: which clients these are, by name or number, with commas; empty: drawn by the
    seed."""
    scored_clients: int
    """evaluation: how many of the clients that train are scored, drawn by the seed, the same in
    every evaluation; 0: all."""
    patience: int
    """evaluation: stop after so many evaluations in a row without a better score on validation
    rows; 0: never."""
    adapt_shots: int
    """evaluation, few-shot: test rows that a client fine-tunes on."""
    adapt_steps: int
    """evaluation: gradient steps of fine-tuning; standard: each on batch-size training rows;
    few-shot: each on all adapt-shots rows."""
    adapt_lr: float
    """evaluation: their step size."""
    adapt_optimizer: str | Callable[..., Any]
    """evaluation: their optimizer, as optimizer."""
    metrics: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
    """evaluation: metrics besides the loss, with commas, the main one first; empty: those of
    the task."""
    data_dir: str
    """folder of torchvision's data sets; downloads go there."""
    device: str
    """cpu, cuda, or cuda:N."""
    cpu_threads: int
    """torch threads of each process that trains; for small models more than 1 is slower, by far
    where processes share the cores."""
    cores: int
    """processes that train the clients of a round, in a run on one machine without nodes; 0: as
    many as pay. The same numbers to the bit, whatever it is."""
    memory_budget: float
    """GiB that a process may use to train clients at once; 0: a quarter of what is free. With
    less, clients train in smaller blocks: the same numbers, to rounding."""
    alpha: float
    """local-moml, per-fedavg: adaptation step size; apfl: weight of a client's own model; 0:
    fedavg; feddyn: weight of the penalty; pfedme: inner step size; meta-ban: how much it
    explores."""
    beta: float
    """local-moml: weight of the newest adaptation in the memory."""
    eta: float | Mapping[str, float]
    """local-moml, per-fedavg, pfedme: step size of the common model; apfl, cfl, ditto,
    fedadagrad, fedadam, fedala, fedalt, fedamp, fedas, fedavg, fedbabu, fedbn, feddbe, feddyn,
    fedem, fedfomo, fedpac, fedper, fedproto, fedprox, fedrep, fedrod, fedyogi, floco, gpfl,
    ifca, knn-per, lg-fedavg, local, mr-mtl, pfedhn, scaffold: step size of a client's local
    steps."""
    hessian: Literal["exact", "first-order", "finite-difference"]
    """local-moml, per-fedavg: how the meta-gradient treats the Hessian: exact, first-order
    (leaves it out) or finite-difference."""
    memory: Literal["reset", "carry"]
    """local-moml: whether memories start anew each round (cross-device) or are carried over
    (cross-silo)."""
    initial_batch_size: int
    """local-moml: rows that a memory starts from (K0); fedfomo: rows by which a client weighs
    models; ifca: rows by which a client chooses."""
    adaptive: bool
    """apfl: whether each client learns its weight, from there."""
    eps1: float
    """cfl: norm of a cluster's mean update below which it may be parted."""
    eps2: float
    """cfl: norm of some update above which a cluster may be parted."""
    clusters: int
    """cfl: clusters at most; 1: fedavg; ifca: models that clients choose from; 1: fedavg."""
    lambda_: float
    """ditto, fedamp, mr-mtl: weight of the proximal term; 0: local models; fedpac: weight of
    the distance to prototypes; fedproto: weight of the distance to prototypes; 0: local models;
    gpfl: weight of the distance to embeddings of classes; knn-per: weight of the client's
    nearest rows; 0: the common model; pfedme: weight of the proximal term."""
    server_eta: float
    """fedadagrad, fedadam, fedyogi: step size of the server; pfedhn: step size of the
    hypernetwork and of the embeddings; scaffold: step size of the server; 1: the mean."""
    beta1: float
    """fedadagrad, fedadam, fedyogi: weight of the former mean of the changes."""
    tau: float | int
    """fedadagrad, fedadam, fedyogi: degree of adaptivity; the smaller, the more; floco: round
    in which clients get parts of the simplex."""
    beta2: float
    """fedadam, fedyogi: weight of the former mean square."""
    weight_eta: float
    """fedala: step size of the weights of a client's last model."""
    weight_share: float
    """fedala: share of a client's steps in a round, the first ones, for these weights."""
    layers: int
    """fedala: last layers that are mixed; others are as received; pfedhn: hidden layers on the
    server; 0: a linear map."""
    personal_share: float
    """fedalt: share of a client's steps in a round, the first ones, for what it keeps; fedrep:
    share of a client's steps in a round, the first ones, for the head."""
    attraction: float
    """fedamp: weight in a client's mixture of another model that is the same as its own."""
    sigma: float
    """fedamp: squared distance of models at which that weight has fallen to 1/e of it."""
    align_eta: float
    """fedas: step size of the steps that align the body."""
    align_share: float
    """fedas: share of a client's steps in a round, the first ones, that align the body."""
    kappa: float
    """feddbe: weight of the distance between mean representations."""
    components: int
    """fedem: models that clients mix; 1: fedavg."""
    models: int
    """fedfomo: models of others that a client is sent."""
    head_share: float
    """fedpac: share of a client's steps in a round, the first ones, for the head."""
    mu: float
    """fedprox: weight of the proximal term; 0: fedavg; gpfl: weight of the squares of the
    embeddings and of the gates' parameters."""
    gamma: float
    """fedrod: exponent of class frequencies in the balanced loss; 0: fedavg; meta-ban: the gap
    between groups: clients agree on an arm whose networks differ by (nu - 1) / nu gamma at
    most."""
    vertices: int
    """floco: heads that span the simplex; 1: fedavg."""
    rho: float
    """floco: radius of a client's part, by the sum of absolute differences of mixture
    weights."""
    k: int
    """knn-per: rows that vote."""
    scale: float
    """knn-per: distance at which a row's vote weighs 1/e of one at no distance."""
    embedding: int
    """pfedhn: numbers in a client's embedding."""
    layer_width: int
    """pfedhn: units of each hidden layer on the server."""
    inner_steps: int
    """pfedme: steps towards the proximal point."""
    server_mix: float
    """pfedme: weight of the round's mean (beta)."""
    nu: float
    """meta-ban: group tolerance; larger values give larger groups."""
    group_cap: int
    """meta-ban: most clients in a group, those who agree best; 0: no limit."""
    user_eta: float
    """meta-ban: step size of a client's network (eta_1)."""
    meta_eta: float
    """meta-ban: step size of the server's (eta_2)."""
    own_weight: float
    """meta-ban: weight of a row of the client whose turn it is, beside others' of 1."""
    user_steps: int
    """meta-ban: a client's steps in its turn (J_1)."""
    meta_steps: int
    """meta-ban: the server's steps in a turn (J_2); in each it asks all clients."""
    replay_batch: int
    """meta-ban: rows of a step."""
    replay_rows: int
    """meta-ban: last rows that a client keeps."""
    arms: int
    """meta-ban: tables: arms to choose from (K); molar-bandit: arms to choose from (K)."""
    user_groups: int
    """meta-ban: groups of each data set's clients, whose right arm depends on the image, too;
    0: it is each client's own."""
    report_every: int
    """meta-ban, molar-bandit: turns that a client reports together, by sums of rewards and
    regrets; smaller values reveal more about single turns."""
    thresholding: Literal["hard", "soft"]
    """molar, molar-bandit: hard (a coefficient is shared or the site's own) or soft."""
    threshold_scale: float
    """molar, molar-bandit: c, scale of the threshold; 0: every site keeps its own estimate."""
    intercept: bool
    """molar, molar-bandit: whether models have an intercept."""
    family: Literal["linear", "logistic", "poisson"]
    """molar: the model: linear, logistic (classes 0 and 1) or poisson (counts)."""
    site_weights: Literal["precision", "equal"]
    """molar: weights of the median: precision (rows over noise variance, as sites claim them)
    or equal (a minority of sites cannot move it far, whatever they claim)."""
    level: float
    """molar: level of confidence intervals."""
    sharing: Literal["median", "adaptive"]
    """molar: median (the paper's one exchange) or adaptive (sites shrink around what is shared:
    for few rows, and for rare classes)."""
    exchanges: int
    """molar: with sharing=adaptive: most exchanges; they end when nothing changes, and linear
    models need one."""
    bandit_model: Literal["C", "P"]
    """molar-bandit: C (each arm has a context; a site has one parameter) or P (a site sees one
    context, and each arm has a parameter)."""
    first_batch: int
    """molar-bandit: turns in the first batch (H0); batches double from the second on, and num-
    rounds is how many there are."""
    history: Literal["batch", "all"]
    """molar-bandit: rows that a site's own step looks at: those since its last estimate, or all
    it ever saw."""
