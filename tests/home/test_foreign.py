"""Folders of models that somebody else has made: refused in one line, whatever they hold."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import load, save

from engram.api import simulate
from engram.home.exported import load_model, runner
from engram.home.exporting import FORMATS
from engram.home.onnx_sandbox import Limits, run_apart
from engram.home.predicting import predict
from engram.settings.errors import Refused
from engram.wire.checksums import summed
from tests.samples import entry

ROWS = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
FAST = Limits(seconds=1, gibibytes=0.5)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with a network, and with a mixture of three."""
    folder = tmp_path_factory.mktemp("models")
    x = np.random.default_rng(1).normal(size=(3, 30, 4)).astype("float32")
    rows = [(each, np.arange(30) % 2) for each in x]
    settings = {"num_rounds": 1, "clients_per_round": 3, "hidden": 8, "progress": False}
    for method in ("ditto", "fedem"):
        run = simulate(rows, method=method, out=folder / f"run-{method}", **settings)
        run.export(1, out=folder / method)
    return folder


@pytest.fixture
def forged(models, tmp_path):
    """Writes a folder with another model's file, and all checksums right."""

    def write(data, format_="onnx", of="ditto", **entries):
        about = json.loads((models / of / "model.json").read_text())
        del about["crc32"]
        about |= {"format": format_, "sha256": hashlib.sha256(data).hexdigest()} | entries
        folder = tmp_path / f"forged-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / FORMATS[format_]).write_bytes(data)
        (folder / "model.json").write_text(json.dumps(summed(about)))
        return folder

    return write


@pytest.fixture
def rows(tmp_path):
    np.savez(tmp_path / "rows.npz", x=ROWS)
    return tmp_path / "rows.npz"


def graph(nodes, constants, outputs=("rows", 2)):
    """An ONNX file of a graph from ``x`` (rows, 4) to ``outputs``."""
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, outputs)],
        constants,
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(made, opset_imports=[opset], ir_version=9).SerializeToString()


def weights(name="w", shape=(4, 2)):
    return helper.make_tensor(name, TensorProto.FLOAT, shape, np.ones(shape).ravel())


def elsewhere():
    found = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 2])
    found.data_location = TensorProto.EXTERNAL
    found.external_data.add(key="location", value="secret.bin")
    return found


def loop(body, *names):
    inputs = [("i", TensorProto.INT64, []), ("on", TensorProto.BOOL, []), ("s", 1, None)]
    outputs = [("on2", TensorProto.BOOL, []), ("s2", TensorProto.FLOAT, None)]
    of = [[helper.make_tensor_value_info(*each) for each in some] for some in (inputs, outputs)]
    same = helper.make_node("Identity", ["on"], ["on2"])
    inner = helper.make_graph([same, *body], "body", *of)
    return helper.make_node("Loop", [*names, "x"], ["y"], body=inner)


TRUE = helper.make_tensor("true", TensorProto.BOOL, [], [True])
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["outputs"])
CONSTANT = helper.make_node("Constant", [], ["w"], value=elsewhere())
INNER = [CONSTANT, helper.make_node("Identity", ["s"], ["s2"])]


# --- ONNX ----------------------------------------------------------------------------------------


def test_a_graph_is_run_apart(forged, rows, tmp_path):
    folder = forged(graph([PRODUCT], [weights()]))
    table = predict(folder, rows, tmp_path / "out.csv", limits=FAST).table
    assert table["probability 1"].tolist() == [0.5] * 5  # of equal logits
    with runner(folder) as (_, runs):
        expected = torch.from_numpy(ROWS.sum(axis=1, keepdims=True)).expand(5, 2)
        torch.testing.assert_close(runs(torch.from_numpy(ROWS)), expected)


def test_numbers_in_other_files_are_not_read(forged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.ones((4, 2), dtype="float32").tofile("secret.bin")
    after = helper.make_node("MatMul", ["y", "w"], ["outputs"])
    for name, nodes, constants in [
        ("weights", [PRODUCT], [elsewhere()]),
        ("constant", [CONSTANT, PRODUCT], []),
        ("inside", [loop(INNER, "", "true"), after], [TRUE]),
    ]:
        folder = forged(graph(nodes, constants))
        expected = "must hold all its numbers, got one that reads other files"
        with entry(name), pytest.raises(Refused, match=expected):
            predict(folder, Path("none"), Path("out.csv"))


def test_an_endless_graph_ends_at_its_deadline(forged, rows, tmp_path, engram):
    step = helper.make_node("Identity", ["s"], ["s2"])
    last = helper.make_node("MatMul", ["y", "w"], ["outputs"])
    folder = forged(graph([loop([step], "", "true"), last], [weights(), TRUE]))
    words = ("predict", folder, rows, "--deadline", "1", "--out", tmp_path / "out.csv")
    message = "cannot predict them: it was still at work after 1 s: give a longer --deadline"
    assert engram(*words) == (2, "", f"engram: {folder} {message}\n")
    assert not (tmp_path / "out.csv").exists()


def test_outputs_beyond_the_memory_are_one_line(forged, rows, tmp_path):
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [5, 400_000_000])
    large = [PRODUCT, helper.make_node("Expand", ["y", "shape"], ["outputs"])]
    large[0] = helper.make_node("MatMul", ["x", "w"], ["y"])
    folder = forged(graph(large, [weights(shape=(4, 1)), shape], None))
    with pytest.raises(Refused, match=r"^[^\n]*cannot predict them: [^\n]*8000000000[^\n]*$"):
        predict(folder, rows, tmp_path / "out.csv", limits=FAST)


def test_what_is_no_graph_is_refused(forged, rows, tmp_path):
    other = graph([helper.make_node("MatMul", ["x", "w"], ["outputs"])], [weights(shape=(9, 2))])
    for data, message in ((b"nothing", "holds no ONNX model"), (other, "holds no ONNX model|MatM")):
        with pytest.raises(Refused, match=message):
            predict(forged(data), rows, tmp_path / "out.csv", limits=FAST)
    few = helper.make_node("ReduceSum", ["x"], ["outputs"], keepdims=1)
    with pytest.raises(Refused, match=r"does not fit .*rows of outputs must be 5, got 1"):
        predict(forged(graph([few], [], None)), rows, tmp_path / "out.csv", limits=FAST)


def test_a_process_that_dies_is_named():
    data = graph([PRODUCT], [weights()])
    with run_apart(data, FAST) as runs:
        (process,) = [
            p for p in psutil.Process().children() if "engram.home.onnx_sandbox" in p.cmdline()
        ]
        process.kill()
        with pytest.raises(Refused, match=r"its process ended with SIGKILL: if it needs more than"):
            runs({"x": ROWS})
    assert not process.is_running()


# --- Sizes ---------------------------------------------------------------------------------------


def test_a_mixture_is_as_large_as_its_networks(models, forged):
    state = load((models / "fedem" / "model.safetensors").read_bytes())
    data = save(state | {"weights": torch.full((10**6,), 1e-6)})
    with pytest.raises(Refused, match=r"arrays of 1000000 networks must be 4000001, got 13"):
        load_model(forged(data, "safetensors", "fedem"))


def test_a_network_is_not_built_that_is_larger_than_its_file(models, forged):
    about = json.loads((models / "ditto" / "model.json").read_text())
    data = (models / "ditto" / "model.safetensors").read_bytes()
    for settings, rows_like in [
        ({"hidden": "20000,20000"}, {}),
        ({"model": "resnet", "hidden": "20000"}, {"inputs": "float32[3,8,8]"}),
        ({"model": "linear"}, {"outputs": 10**9}),
    ]:
        changed = {"settings": about["settings"] | settings, "kind": about["kind"] | rows_like}
        expected = "parameters of its settings' network must be at most"
        with entry(settings), pytest.raises(Refused, match=expected):
            load_model(forged(data, "safetensors", **changed))


def test_large_files_are_refused_by_their_size(models, forged):
    folder = forged((models / "ditto" / "model.safetensors").read_bytes(), "safetensors")
    os.truncate(folder / "model.safetensors", 2**42)  # with a hole
    with pytest.raises(Refused, match=r"model\.safetensors needs 1\.23e\+04 GiB, and .* are free"):
        load_model(folder)
    os.truncate(folder / "model.json", 3 * 2**30)
    with pytest.raises(Refused, match=r"model\.json cannot be read: Larger than 67108864 bytes"):
        load_model(folder)
    (folder / "model.json").unlink()
    (folder / "model.json").symlink_to("/dev/zero")
    with pytest.raises(Refused, match=r"it has no model\.json"):
        load_model(folder)


def test_a_description_of_other_types_is_one_line(models, forged):
    for entries in [
        {"settings": []},
        {"settings": {"method": ["ditto"]}},
        {"kind": {"inputs": 5}},
        {"kind": {"inputs": "float32[4]", "outputs": -1}},
        {"classes": "01"},
        {"kind": {"inputs": "float32[1]", "outputs": 2, "schema": {"columns": [["x"]]}}},
        {"outputs": "pictures"},
        {"ranges": [{"name": "x", "low": "least", "high": 1.0}]},
        {"intervals": {"level": 0.9}},
    ]:
        with entry(entries):
            data = (models / "ditto" / "model.safetensors").read_bytes()
            with pytest.raises(Refused, match=r"^[^\n]*model\.json is damaged: [^\n]*$"):
                load_model(forged(data, "safetensors", **entries))
