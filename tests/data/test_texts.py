"""Columns of texts, end to end: news of six desks, in one process, on nodes, and after export."""

import json
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from torch import nn

import engram
from engram.api import Run
from engram.core.standardization import Tokenizer, Units
from engram.data.load_federation import federated_data, own_data
from engram.data.schema.columns import SUMS, Kind, Told
from engram.data.schema.proposal import described
from engram.data.source import DATASETS, Source
from engram.data.tokenizers import encode
from engram.home.exported import load_model
from engram.home.predicting import predict
from engram.server.run import run as run_on
from engram.settings.errors import DataError, EngramError, Refused
from engram.settings.experiment import Experiment
from engram.sites.policy import Policy
from engram.sites.policy_checks import of_sums
from engram.tune.runs import members_of
from engram.wire.roster import describe_node, read_entry
from engram.wire.wire import CONFIG, units_entries, units_of
from tests.networks.test_text import library
from tests.samples import entry, sampled
from tests.server.nodes import NodesGrid
from tests.simulations.apart import run_apart
from tests.support import declared_values

DESKS = 6
TOPICS = {
    "business": "market shares profit bank merger quarter investors oil",
    "science": "software satellite researchers chip internet virus launch data",
    "sports": "match goal season coach league striker stadium final",
    "world": "minister election treaty border parliament army embassy vote",
}
COMMON = ("the", "of", "in", "on", "and", "for", "with", "after", "new", "says", "to", "as", "at")
WORDS = (*COMMON, *" ".join(TOPICS.values()).split())


def text_schema(vocabulary=300, length=24, **entries):
    """The schema of a column ``text``."""
    entries |= {"vocabulary": vocabulary, "length": length}
    each = (f"{key} = {json.dumps(value)}" for key, value in entries.items())
    return f'columns.text = {{kind = "text", {", ".join(each)}}}'


SETTINGS = {"method": "fedavg", "schema": text_schema(), "model": "text-mean", "hidden": "16"}
SETTINGS |= {"target_column": "topic", "task_column": "desk", "partition": "natural"}
SETTINGS |= {"num_clients": DESKS, "clients_per_round": DESKS, "validation_fraction": 0.0}
SETTINGS |= {"optimizer": "adam", "eta": 0.02, "local_epochs": 2, "num_rounds": 5, "eval_every": 5}


def news(rows=900, seed=0):
    """Titles like AG News's: common words, names, words of a topic and of others; some mistaken."""
    rng = np.random.default_rng(seed)
    words = {topic: text.split() for topic, text in TOPICS.items()}
    table = []
    for row in range(rows):
        topic, other = rng.choice(list(words), 2)
        title = [*rng.choice(COMMON, 9), *rng.choice(words[topic], 2), *rng.choice(words[other], 1)]
        title += [f"Name{k}" for k in rng.integers(400, size=3)]
        told = rng.choice(list(words)) if rng.random() < 0.1 else topic
        table.append((f"desk{row % DESKS}", " ".join(rng.permutation(title)) + ".", told))
    return pd.DataFrame(table, columns=["desk", "text", "topic"])


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("news") / "news.csv"
    news().to_csv(path, index=False)
    return f"csv:{path}"


@pytest.fixture(scope="module")
def run(csv, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return engram.simulate(dataset=csv, out=out, progress=False, **SETTINGS)


def split_of(run):
    """Texts and topics of training and of test rows."""
    table = news()
    rows = [run.split(f"desk{k}") for k in range(DESKS)]
    return [table.iloc[np.concatenate([own[part] for own in rows])] for part in ("train", "test")]


def test_a_mean_of_embeddings_is_as_good_as_a_logistic_regression_of_counts(run):
    train, test = split_of(run)
    counts = CountVectorizer().fit(train.text)
    model = LogisticRegression(max_iter=500).fit(counts.transform(train.text), train.topic)
    reference = model.score(counts.transform(test.text), test.topic)
    assert 0.8 < reference < 1  # else there would be nothing to compare
    found = run.clients["accuracy-common"]
    sizes = [len(run.split(name)["test"]) for name in run.clients.index]
    assert np.average(found, weights=sizes) > reference - 0.03


def expected_words(parts, least=5, most=300):
    """The vocabulary of training texts by sets and counts alone, of each client's texts."""
    total = Counter()
    for texts in parts:
        own = Counter(w for t in texts for w in set(t.lower().rstrip(".").split()))
        total.update({w: n for w, n in own.items() if n >= least})
    return [w for w, _ in sorted(total.items(), key=lambda one: (-one[1], one[0]))][:most]


def test_the_vocabulary_is_of_words_that_enough_training_rows_of_a_client_have(run):
    train, _ = split_of(run)
    words = run.units.text.words
    assert list(words) == expected_words([own.text for _, own in train.groupby("desk")])
    assert len(words) < len(COMMON) + 32 + 60  # of 400 names few
    assert run.metrics.loc[0, "units"]["text"] == {"by": "words", "words": [*words], "file": ""}


# --- Nodes ---------------------------------------------------------------------------------------


@pytest.fixture
def desk():
    def desk(client):
        own = news(240)
        own = own[own.desk == f"desk{client}"]
        return own[["text"]], own["topic"].map([*TOPICS].index).to_numpy()

    engram.data(desk)
    yield
    del DATASETS["desk"]


@pytest.mark.parametrize("tokenizer", sampled(["words", "characters", "file"], ["words"]))
def test_nodes_that_see_their_own_texts_train_as_one_process(tmp_path, desk, tokenizer):
    if tokenizer == "file":
        tokenizer = str(tmp_path / "words.txt")
        (tmp_path / "words.txt").write_text("\n".join(WORDS))
    given = {"dataset": "desk", "schema": text_schema(tokenizer=tokenizer)}
    given |= {"num_rounds": 2, "num_classes": 4}
    own = {k: v for k, v in (SETTINGS | given).items() if k not in ("target_column", "task_column")}
    one = engram.simulate(out=tmp_path / "one", progress=False, **own)
    nodes = run_apart(tmp_path / "nodes", Experiment(**own))
    assert one.units == nodes.units
    assert len(one.units.text.words) > 15
    torch.testing.assert_close(nodes.model, one.model, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.clients["accuracy"], nodes.clients["accuracy"], atol=1e-6)


@pytest.mark.full
def test_nodes_with_files_of_their_own_make_one_vocabulary_and_export_it(tmp_path):
    table, data = news(360), []
    for client in range(3):
        table[table.index % 3 == client].to_csv(tmp_path / f"{client}.csv", index=False)
        data.append(f"csv:{tmp_path}/{client}.csv")
    given = SETTINGS | {"num_clients": 3, "clients_per_round": 3, "num_classes": 4}
    schema = f"{text_schema()}\n{declared_values(topic='|'.join(TOPICS))}"
    declared = {"schema": schema, "num_rounds": 2, "dataset": data[0]}
    e = Experiment(**given | declared)
    run_on(NodesGrid(e, data, tmp_path / "state"), e, tmp_path / "run", engine="vectorized")
    run = Run(tmp_path / "run")
    texts = []
    for client in range(3):
        train = own_data(e, Source(data[client]), client).train
        texts.append(train.x.texts[train.rows[client]])
    assert list(run.units.text.words) == expected_words(texts)
    note = next((tmp_path / "state").glob("node-1/memory/*/training.json")).read_text()
    assert '"by": "words"' in note


def test_words_that_a_node_tells_are_checked():
    told = Told(words={"fever": 6, "caf\u00e9": 5})
    found = read_entry(describe_node({0: 10}, Kind("int64[4]", 2), told=told))
    assert found.told == told
    for words in ({"fever": 11}, {"fever": 0}, {"x" * 65: 5}):
        entry = describe_node({0: 10}, Kind("int64[4]", 2), told=Told(words=words))
        with pytest.raises(ValueError, match="words must be"):
            read_entry(entry)
    twice = describe_node({0: 10}, Kind("int64[4]", 2), told=told)
    twice["roster"]["words"] = ["a", "a"]
    with pytest.raises(ValueError, match="words must be different"):
        read_entry(twice)


def test_a_policy_holds_of_words_as_of_sums():
    entry = {"words": ["fever"], "word-rows": [4]}
    assert entry.keys() <= SUMS  # what waits for approval
    (few,) = of_sums(Policy(), entry)
    assert few == "least, of rows with a word, must be at least 5, got 4"
    assert [*of_sums(Policy(least_count=4), entry)] == []
    (alone,) = of_sums(Policy(least_count=1, secure=3), entry)
    assert "tokenizer must be a file" in alone


def test_a_tokenizer_travels_in_messages():
    for text in (Tokenizer("words", ("a", "\u00e9")), Tokenizer("tokenizers", file="{}")):
        content = {CONFIG: units_entries(Units(text=text))}
        assert units_of(content) == Units(text=text)
    right = units_entries(Units(text=text))
    for wrong in ({"text-by": "x"}, {"text-words": [1]}, {"text-file": 2.0}):
        content = {CONFIG: right | wrong}
        with pytest.raises(EngramError, match="units must be"):
            units_of(content)


# --- Afterwards ----------------------------------------------------------------------------------


def test_an_exported_model_predicts_texts_with_its_tokenizer(run, tmp_path):
    texts = ["Coach says: GOAL in the final", "bank profit, oil", "None", "?"]
    rows = pd.DataFrame({"id": ["01", "02", "03", "04"], "text": texts})
    rows.to_csv(tmp_path / "new.csv", index=False)
    graph = run.export(out=tmp_path / "graph", format="onnx")
    table = predict(graph, tmp_path / "new.csv", tmp_path / "out.csv").table
    assert table["predicted"][:2].tolist() == ["sports", "business"]
    for folder in (run.export(out=tmp_path / "common"), run.export("desk1", out=tmp_path / "own")):
        table = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv").table
        assert table["predicted"][:2].tolist() == ["sports", "business"]
        module = load_model(folder)
        tokens = encode([*rows.text], run.units.text, 24)
        shares = module(torch.from_numpy(tokens)).softmax(1)[:, 0]
        np.testing.assert_allclose(table["probability business"], shares.detach(), atol=1e-6)
    rows.assign(text=["a", None, "b", "c"]).to_csv(tmp_path / "lacks.csv", index=False)
    with pytest.raises(DataError, match="text is missing in row 3: set missing=indicator"):
        predict(folder, tmp_path / "lacks.csv", tmp_path / "out.csv")
    rows.drop(columns="text").to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(DataError, match="no column 'text'"):
        predict(folder, tmp_path / "none.csv", tmp_path / "out.csv")


def test_a_desk_that_never_trained_gets_a_model_by_the_same_tokenizer(run, tmp_path):
    news(40, seed=5).to_csv(tmp_path / "new.csv", index=False)
    folder = run.adapt(tmp_path / "new.csv", out=tmp_path / "model")
    table = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv").table
    assert (table["predicted"] == table["topic"]).mean() > 0.7


def test_runs_that_are_tuned_have_a_tokenizer(csv):
    e = Experiment(**SETTINGS | {"dataset": csv, "num_rounds": 1})
    (member,) = members_of([e])
    assert member.trainer.data.train.x.dtype == torch.int64
    assert len(member.trainer.data.units.text.words) > 40


# --- What texts may be ---------------------------------------------------------------------------


def read(table, tmp_path, **settings):
    table.to_csv(tmp_path / "rows.csv", index=False)
    given = SETTINGS | {"dataset": f"csv:{tmp_path}/rows.csv"} | settings
    return federated_data(Experiment(**given))


def odd(texts):
    table = news(240)
    table["text"] = table["text"].astype(object)
    table.loc[table.index[: len(texts)], "text"] = texts
    return table


def test_texts_are_read_as_they_are_written(tmp_path):
    texts = ["NA", "none", "007", "1,5", "e\u0301t\u00e9 \u4e2d\u6587", " ", "word " * 10**5]
    found = read(odd(texts), tmp_path)
    there = {text for split in (found.train, found.test) for text in split.x.texts}
    assert there >= {*texts}
    assert found.kind.inputs == "int64[24]"


def test_a_missing_text_is_refused_or_empty(tmp_path):
    with pytest.raises(DataError, match="text is missing in row 2: set missing=indicator"):
        read(odd([None]), tmp_path)
    with pytest.raises(DataError, match="text is missing in row 3"):
        read(odd(["fine", "unknown"]), tmp_path, schema=text_schema(missing=["unknown"]))
    schema = text_schema(missing=["unknown"])
    found = read(odd([None, "unknown"]), tmp_path, schema=schema, missing="indicator")
    there = [*found.train.x.texts, *found.test.x.texts]
    assert there.count("") == 2


class Own(nn.Sequential):
    """A network of a user's, of 300 words, padding and what is unknown."""

    def __init__(self):
        super().__init__(nn.Embedding(302, 8), nn.Flatten(), nn.Linear(24 * 8, 4))


@pytest.mark.parametrize("source", ["parquet", "frame", "parts"])
def test_texts_of_other_tables_are_the_same(csv, tmp_path, source):
    table, given = news(240), dict(SETTINGS, num_rounds=1, progress=False, out=tmp_path / "run")
    if source == "frame":
        rows = (table[["desk", "text"]], table["topic"])
        given = {k: v for k, v in given.items() if k != "target_column"}
        run = engram.simulate(rows, **given | {"model": Own})
        assert run.model["0.weight"].shape == (302, 8)
    else:
        parts = {"train": table[:180], "test": table[180:]} if source == "parts" else {"": table}
        for name, part in parts.items():
            path = tmp_path / "rows" / f"{name}-00000-of-00001.parquet"
            path.parent.mkdir(exist_ok=True)
            part.to_parquet(path if name else tmp_path / "rows.parquet", index=False)
        path = tmp_path / ("rows" if source == "parts" else "rows.parquet")
        run = engram.simulate(dataset=f"parquet:{path}", data_dir=f"{tmp_path}/data", **given)
    assert set(run.units.text.words) <= {*WORDS}
    assert run.learned.data.train.x.shape[1] == 24


def test_a_column_of_kind_text_is_the_text_column(csv):
    roles = 'columns.topic = {role = "target"}\ncolumns.desk = {kind = "text", role = "client"}'
    schema = f"{text_schema()}\n{roles}"
    short = Experiment(**SETTINGS | {"dataset": csv})
    columns = ("target_column", "task_column")
    given = {key: value for key, value in SETTINGS.items() if key not in columns}
    e = Experiment(**given | {"dataset": csv, "schema": schema})
    assert e.text == short.text
    assert [*federated_data(e).train.x.texts] == [*federated_data(short).train.x.texts]
    # A target that a setting names may be text, too.
    target = {"schema": 'columns.topic = {kind = "text"}', "target_column": "topic"}
    assert Experiment(**given | {"dataset": csv, "task_column": "desk"} | target).text is None
    # What is written of a file with a text column is what is needed.
    known = {"schema": text_schema(), "target-column": "topic"}
    written = described(csv.removeprefix("csv:"), known)
    assert Experiment(**given | {"dataset": csv, "schema": written}).text == short.text


def test_a_text_is_the_only_input_of_a_schema(csv, tmp_path, caplog):
    news().assign(page=1).to_csv(tmp_path / "pages.csv", index=False)
    federated_data(Experiment(**SETTINGS | {"dataset": f"csv:{tmp_path}/pages.csv"}))
    assert "text is the only input, without page" in caplog.text
    words = r'no input beside the text text, got page: write columns\.page = {kind = "ignored"}'
    for kind in ("text", "number", "category"):
        more = f'{text_schema()}\ncolumns.page = {{kind = "{kind}"}}'
        with entry(kind), pytest.raises(DataError, match=words):
            federated_data(Experiment(**SETTINGS | {"dataset": csv, "schema": more}))


def test_a_numbers_column_is_no_text():
    frame = pd.DataFrame({"desk": ["a", "b"] * 20, "text": range(40)})
    with pytest.raises(DataError, match="text must hold texts, got 0 in row 0"):
        engram.simulate((frame, np.arange(40) % 2), schema=text_schema(), task_column="desk")


def test_settings_that_do_not_go_with_texts(csv):
    for settings, why in [
        ({"privacy": "local", "clip": 1.0}, "tokenizer must be a file where privacy is local"),
        ({"input_columns": "a,b"}, "input-columns must be empty beside the text text"),
        ({"missing": "median"}, "missing must be refuse, or indicator"),
        ({"dataset": "digits"}, "dataset must be csv:PATH, .* for texts"),
        ({"task": "next-token"}, "task must be another for a column of texts"),
    ]:
        with entry(settings, why), pytest.raises(Refused, match=why):
            Experiment(**SETTINGS | {"dataset": csv} | settings)


def test_a_network_for_numbers_is_refused_with_those_for_texts(csv):
    with pytest.raises(Refused, match=r"inputs of mlp must be numbers .* \(text-mean, .* tokens"):
        engram.simulate(progress=False, **SETTINGS | {"dataset": csv, "model": "mlp"})


def test_rows_of_privacy_are_held_out_by_their_texts(tmp_path):
    (tmp_path / "words.txt").write_text("\n".join(COMMON))
    own = {"privacy": "example", "clip": 1.0, "optimizer": "sgd", "noise_multiplier": 1.0}
    own |= {"schema": text_schema(tokenizer=f"{tmp_path}/words.txt")}
    own |= {"local_epochs": 0, "local_steps": 2}
    e = Experiment(**SETTINGS | own | {"dataset": "csv:rows.csv"})
    table, kept = news(240), {}
    for name, some in (("all", table), ("less", table.drop(index=7))):
        some.to_csv(tmp_path / "rows.csv", index=False)
        data = federated_data(e.model_copy(update={"dataset": Source(f"csv:{tmp_path}/rows.csv")}))
        kept[name] = {*data.test.x.texts}
    # No other row moves, whichever is taken away.
    assert kept["all"] - kept["less"] <= {table.text[7]}
    assert kept["less"] <= kept["all"]
    given = SETTINGS | own | {"dataset": f"csv:{tmp_path}/rows.csv", "num_rounds": 1}
    run = engram.simulate(out=tmp_path / "run", progress=False, **given)
    assert run.units.text.words == tuple(COMMON)


# --- Files of vocabularies -----------------------------------------------------------------------


def test_a_tokenizer_json_is_read_where_the_run_is_started(csv, tmp_path):
    (tmp_path / "tokenizer.json").write_text(library(["[UNK]", *WORDS]))
    schema = text_schema(tokenizer=f"{tmp_path}/tokenizer.json")
    given = SETTINGS | {"dataset": csv, "schema": schema, "num_rounds": 4}
    run = engram.simulate(out=tmp_path / "run", progress=False, **given)
    assert run.clients["accuracy-common"].mean() > 0.7
    folder = run.export(out=tmp_path / "model")
    (tmp_path / "tokenizer.json").unlink()
    pd.DataFrame({"text": ["coach goal final"]}).to_csv(tmp_path / "new.csv", index=False)
    table = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv").table
    assert table["predicted"].tolist() == ["sports"]


NO_TOKENIZERS = [
    ("none.txt", None, "tokenizer must be words, characters or a file, got .*No such file"),
    ("large.txt", b"a\n" * 2**23 + b"b", "Larger than 16777216 bytes"),
    ("two.txt", b"blood pressure", "cannot be the tokenizer: line 1 .* must be one word"),
    ("bytes.txt", b"\xff\xfe", "cannot be the tokenizer"),
    ("many.txt", b"\n".join(b"w%d" % k for k in range(301)), "vocabulary must be at least 301"),
    ("other.json", b"{}", "cannot be the tokenizer: it is no tokenizer.json"),
]


def test_other_files_are_refused_before_anything_trains(csv, tmp_path, monkeypatch):
    def refused(name, why):
        schema = text_schema(tokenizer=f"{tmp_path}/{name}")
        with entry(name), pytest.raises(Refused, match=why):
            engram.simulate(progress=False, **SETTINGS | {"dataset": csv, "schema": schema})

    monkeypatch.chdir(tmp_path)
    for name, contents, why in NO_TOKENIZERS:
        if contents is not None:
            (tmp_path / name).write_bytes(contents)
        refused(name, why)
    (tmp_path / "tokenizer.json").write_text(library(["a"]))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused("tokenizer.json", r"pip install 'engram\[text\]'")


def test_a_vocabulary_without_words_is_refused(csv, tmp_path):
    given = SETTINGS | {"dataset": csv, "schema": text_schema(least=10**5)}
    with pytest.raises(Refused, match="no word of text is in 100000 training rows of a client"):
        engram.simulate(out=tmp_path / "run", progress=False, **given)
