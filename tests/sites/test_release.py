"""Release records: of a run of three sites, signed by each, and verified by keys alone."""

import copy
import hashlib
import importlib.util
import json
import re
import shutil

import jsonschema
import numpy as np
import pytest

from engram.runs.release import verified_release
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.settings.fingerprint import fingerprint, source_root
from engram.sites.approvals import APPROVALS, answer, waiting
from engram.sites.release.site_part import row_range
from engram.wire.wire import RELEASE
from tests.samples import entry
from tests.server.nodes import NodesGrid
from tests.sites.budgets import epsilon_of
from tests.support import small

ROUNDS, NOISE = 2, 8.0
ROWS = (40, 64, 90)  # of each site; some of them train
SCHEMA = source_root() / "docs" / "release.schema.json"
BEGIN = ("release", "runs/fed", "--federation", "fed/server", "--requester", "Dr Berg, trial 12")
EXPORT = ("export", "runs/fed", "--common", "--out")


class Approving(NodesGrid):
    """Nodes whose sites approve whatever waits for them."""

    def _replied(self, question):
        reply = super()._replied(question)
        folder = self._state / f"node-{question.node}" / APPROVALS
        for one in waiting(folder):
            answer(folder, one.terms, "approved")
            reply = super()._replied(question)
        return reply


def write_rows(path, rows, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    np.savez(path, x=(rng.normal(size=(rows, 3)) + y[:, None]).astype(np.float32), y=y)


@pytest.fixture
def run(tmp_path, engram):
    """A run of three sites, all of which demand a release, and the first of which approves it."""
    assert engram("init-federation", "fed", "--clients", 3)[0] == 0
    (tmp_path / "nodes").mkdir()
    for client, rows in enumerate(ROWS):
        state = tmp_path / f"fed/client-{client}/state"
        state.mkdir(mode=0o700)
        approval = "approval = true\n" if client == 0 else ""
        rules = f"epsilon = 8.0\nleast-count = 7\nrelease = true\n{approval}"
        (state / "policy.toml").write_text(rules)
        (tmp_path / f"nodes/node-{client + 1}").symlink_to(state)
        write_rows(tmp_path / f"{client}.npz", rows, client)
    data = [f"npz:{tmp_path}/{client}.npz" for client in range(3)]
    given = {"privacy": "local", "clip": 0.5, "noise_multiplier": NOISE, "num_rounds": ROUNDS}
    given |= {"num_clients": 3, "clients_per_round": 3, "eval_every": 9, "weighting": "clients"}
    e = small(method="ditto", standardize="none", **given)
    run_on(Approving(e, data, tmp_path / "nodes"), e, tmp_path / "runs/fed", engine="flower")
    return Run.open(tmp_path / "runs/fed")


@pytest.fixture
def release(tmp_path, engram, run):
    """The folder of its release, signed by all sites on copies of their own."""
    (tmp_path / "sbom.json").write_text("{}")
    (tmp_path / "audit.json").write_text('{"verdict": ["No attack here reconstructs rows."]}')
    done(engram(*BEGIN, "--sbom", "sbom.json", "--audit", "audit.json"))
    for client in range(3):
        shutil.copytree("runs/fed/release", f"copy-{client}")
        done(engram("release", f"copy-{client}", "--sign", f"fed/client-{client}"))
    done(engram("release", "runs/fed", *(f"--join=copy-{client}" for client in (2, 0, 1))))
    return run.folder / RELEASE


def done(called):
    status, out, err = called
    assert status == 0, err
    return out


def refused(called):
    status, _, err = called
    assert status == 2
    return err.splitlines()[-1]


def contents(folder):
    return json.loads((folder / "release.json").read_text())


def write(folder, record):
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
    (folder / "release.json").write_text(f"{text}\n")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def elsewhere(release, tmp_path):
    """Another machine: a folder with the record, and one with keys alone."""
    machine, keys = tmp_path / "machine", tmp_path / "machine" / "keys"
    keys.mkdir(parents=True)
    shutil.copy(release / "release.json", machine)
    for name in ("registry", "ca.crt"):
        shutil.copy(tmp_path / "fed" / "server" / name, keys)
    return machine, keys


def test_a_release_says_what_its_models_rest_on_and_is_verified_by_keys_alone(
    tmp_path, engram, run, release
):
    machine, keys = elsewhere(release, tmp_path)
    (tmp_path / "fed").rename(tmp_path / "gone")
    out = done(engram("release", machine, "--verify", keys))
    assert "asked by  Dr Berg, trial 12" in out
    assert "whole: signed by 3 sites; authority SHA256 " in out
    record = contents(machine)
    jsonschema.validate(record, json.loads(SCHEMA.read_text()))
    about, (first, second, third) = record["run"], record["sites"]
    assert [about[key] for key in ("method", "rounds")] == ["ditto", ROUNDS]
    assert about["training"] == run.config["training"]
    assert about["settings"].items() >= {"noise-multiplier": NOISE, "privacy": "local"}.items()
    assert about["participation"] == {"0": ROUNDS, "1": ROUNDS, "2": ROUNDS}
    assert about["sources"] == [first["source"]] == [fingerprint()]
    assert about["audit"] == ["No attack here reconstructs rows."]
    model = f"checkpoints/round-{ROUNDS}/model.safetensors"
    assert about["hashes"][model] == sha256(run.folder / model)
    assert about["hashes"]["sbom"] == hashlib.sha256(b"{}").hexdigest()
    # Updates of two rounds and one report of scores, each of sensitivity 2 / z.
    epsilon = epsilon_of([(2 / NOISE) ** 2] * (ROUNDS + 1))
    adjacency = "one client's data are replaced by any others"
    for client, site in enumerate((first, second, third)):
        state = tmp_path / "gone" / f"client-{client}" / "state"
        (book,) = (state / "ledger").glob("*.jsonl")
        charges = [json.loads(line) for line in book.read_bytes().splitlines()]
        assert site["privacy"]["epsilon"] == pytest.approx(epsilon, rel=1e-6)
        assert site["privacy"]["adjacency"] == adjacency
        assert site["ledger"]["epsilon"] - 0.8 < epsilon <= site["ledger"]["epsilon"] == 2.4
        assert site["rows"][0] <= charges[0]["rows"] <= site["rows"][1]
        assert site["events"].keys() == {"0", "1"}
        least = {"least-rows": 1, "least-drawn": 2, "least-count": 7, "secure": 0}
        assert site["least"] == least
        assert site["rounds"] == ROUNDS
        assert site["trained"] == [line["time"][:10] for line in (charges[0], charges[-1])]
    assert [*first["approvals"].values()] == ["approved"]
    assert (first["must-approve"], second["must-approve"], second["approvals"]) == (True, False, {})
    assert first["policy"] != second["policy"] == third["policy"]
    last = book.read_bytes().splitlines()[-1]
    assert third["ledger"]["head"] == hashlib.sha256(last).hexdigest()
    *_, before, noted = (state / "log" / "log.jsonl").read_bytes().splitlines()
    assert third["log"] == hashlib.sha256(before).hexdigest()
    assert json.loads(noted)["kind"] == "released"


def leaves(value, path=()):
    if isinstance(value, dict | list) and value:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def changed(value):
    """Another value, of the same type where there is one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):  # one letter, or hexadecimal digit
        return ("b" if value[:1] == "a" else "a") + value[1:]
    return ["a"] if isinstance(value, list) else {"a": "0" * 64}


def at(record, path):
    for key in path:
        record = record[key]
    return record


def test_every_field_that_is_changed_added_or_taken_out_is_refused(tmp_path, release):
    machine, keys = elsewhere(release, tmp_path)
    verified_release(machine, keys)
    whole, by_signature, schema = contents(machine), 0, json.loads(SCHEMA.read_text())
    valid = jsonschema.Draft202012Validator(schema).is_valid
    every = list(leaves(whole))
    assert {path[0] for path in every} == {"run", "sites"}
    for path in every:
        with entry(path):
            record = copy.deepcopy(whole)
            at(record, path[:-1])[path[-1]] = changed(at(whole, path))
            write(machine, record)
            with pytest.raises(Refused) as caught:
                verified_release(machine, keys)
            by_signature += valid(record) and "signature must be" in str(caught.value)
    assert by_signature > len(every) // 2  # others are refused before, by the schema or the keys
    for part, sites in (("added", [*whole["sites"], whole["sites"][0]]), ("", whole["sites"][:2])):
        with entry(part):
            write(machine, whole | {"sites": sites})
            with pytest.raises(Refused, match="must be signed by each client that took part"):
                verified_release(machine, keys)
    write(machine, whole | {"more": 1})
    with pytest.raises(Refused, match="damaged"):
        verified_release(machine, keys)
    twice = json.dumps(whole).replace('"method": "ditto"', '"method": "fedavg", "method": "ditto"')
    (machine / "release.json").write_text(twice)  # of which parsers take one or the other
    with pytest.raises(Refused, match="has been edited: take it again"):
        verified_release(machine, keys)


def test_keys_of_another_authority_verify_nothing(tmp_path, engram, release):
    done(engram("init-federation", "other", "--clients", 3))
    other, (machine, keys) = tmp_path / "other" / "server", elsewhere(release, tmp_path)
    assert "has no such key of client-0" in refused(engram("release", machine, "--verify", other))
    (tmp_path / "empty").mkdir()
    shutil.copy(keys / "ca.crt", "empty")
    said = refused(engram("release", machine, "--verify", "empty"))
    assert "empty/registry must be signed by the authority of empty/ca.crt" in said
    shutil.copy(other / "ca.crt", keys)
    said = refused(engram("release", machine, "--verify", keys))
    assert f"{keys}/registry must be signed by the authority of {keys}/ca.crt" in said


def test_without_a_release_nothing_is_exported_where_a_policy_demands_one(tmp_path, engram, run):
    training = run.config["training"]
    at_site = ("memory", "export", "fed/client-1", training, 1)
    assert run.rows()[0]["release"] == [0, 1, 2]
    said = refused(engram(*EXPORT, "a"))
    assert said.startswith("engram: policies of client-0, client-1, client-2 demand a release")
    assert "this site's policy demands a release" in refused(engram(*at_site, "b"))
    done(engram(*BEGIN))
    assert "has a release already" in refused(engram(*BEGIN))
    for client in range(3):  # one after the other, in the same folder
        said = refused(engram(*EXPORT, "a"))
        assert f"and by no other: client-{client}" in said
        assert "not signed: engram release --sign FOLDER" in said
        said = refused(engram(*at_site, "b", "--release", "runs/fed/release"))
        assert "must be signed by each client" in said
        done(engram("release", "runs/fed", "--sign", f"fed/client-{client}"))
    done(engram(*EXPORT, "a"))
    done(engram(*at_site, "b", "--release", "runs/fed/release"))
    for card in ("a/card.md", "b/card.md"):
        assert sha256(run.folder / RELEASE / "release.json") in (tmp_path / card).read_text()
    hashes = contents(run.folder / RELEASE)["run"]["hashes"]
    assert hashes["common/model.safetensors"] == sha256(tmp_path / "a/model.safetensors")
    for memory in (tmp_path / "fed/client-1/state/memory").rglob("*.memory"):
        memory.write_bytes(memory.read_bytes() + b" ")  # as another round would
    said = refused(engram(*at_site, "c", "--release", "runs/fed/release"))
    assert "is of another, or of other models" in said
    folder = run.checkpoints()[ROUNDS]
    shutil.rmtree(folder)
    shutil.copytree(run.checkpoints()[0], folder)
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"round": 0', f'"round": {ROUNDS}'))
    assert "is of another run, or of other models" in refused(engram(*EXPORT, "c"))


def test_a_site_signs_nothing_that_its_node_knows_otherwise(tmp_path, engram, run):
    (tmp_path / "config.json").write_text('{"settings": {}}')
    said = refused(engram(*BEGIN, "--audit", "config.json"))
    assert "config.json must be the audit.json of an engram audit" in said
    done(engram("init-federation", "two", "--clients", 2))  # one of which serves two clients
    said = refused(engram("release", *BEGIN[1:3], "two/server", *BEGIN[4:]))
    assert "two/server/registry, and client-2 has none: a node of several clients" in said
    done(engram(*BEGIN))
    sign, folder = ("release", "runs/fed", "--sign", "fed/client-2"), run.folder / RELEASE
    whole = contents(folder)
    for key, value, says in (
        ("settings", whole["run"]["settings"] | {"clip": 1.0}, "differs in clip"),
        ("sources", ["0" * 16], "differs in source"),
        ("training", "0" * 16, "training.json is not there"),
        ("training", "../../../etc", "release.json is damaged: run.training"),
    ):
        with entry(key, value):
            write(folder, {"run": whole["run"] | {key: value}, "sites": []})
            assert says in refused(engram(*sign))
    write(folder, whole)
    write_rows(tmp_path / "2.npz", 91, 2)
    assert "have changed since" in refused(engram(*sign))
    write_rows(tmp_path / "2.npz", 90, 2)
    log = tmp_path / "fed/client-2/state/log/log.jsonl"
    log.write_text(log.read_text().replace('"round": 1', '"round": 7'))
    assert "a site signs no release by a log that was changed" in refused(engram(*sign))
    (tmp_path / "copy").mkdir()
    write(tmp_path / "copy", {"run": whole["run"] | {"requester": "Dr Ames"}, "sites": []})
    said = refused(engram("release", "runs/fed", "--join", "copy"))
    assert "releases must be copies of one record" in said
    shown = done(engram("release", folder / "release.json"))  # which a person reads, and then signs
    assert shown.startswith("training ")
    assert "not verified" in shown
    assert "takes one of --federation" in refused(engram(*sign, "--verify", "copy"))


def test_numbers_of_rows_are_ranges_and_the_published_schema_is_that_of_the_records():
    for rows, least, low, high in [
        *((0, 5, 0, 4), (4, 5, 0, 4), (5, 5, 5, 9), (19, 5, 10, 19), (20, 5, 20, 49)),
        *((1, 1, 1, 1), (7, 7, 7, 9), (999, 5, 500, 999), (1000, 5, 1000, 1999)),
    ]:
        with entry(rows, least):
            assert row_range(rows, least) == [low, high]
    path = source_root() / "docs/tools/release_schema.py"
    spec = importlib.util.spec_from_file_location("release_schema", path)
    spec.loader.exec_module(tool := importlib.util.module_from_spec(spec))
    assert SCHEMA.read_text() == tool.schema()
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))
    assert re.search(r'"additionalProperties": true', SCHEMA.read_text()) is None
