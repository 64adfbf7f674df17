"""Exported models of tables and of users: coefficients with their intervals, users' networks."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.bandits.federation.bandit_turns import drawn_arrivals
from engram.bandits.federation.host import UserSites
from engram.client.memory import RamStore
from engram.data.tables.tables import table_data
from engram.home.exported import load_model, runner
from engram.settings.errors import Refused
from engram.tables.families import FAMILIES


def trained(method, dataset="sparse-linear", **settings):
    given = {"method": method, "dataset": dataset, "num_clients": 3, "out": "run"}
    return engram.simulate(progress=False, **given | settings)


@pytest.mark.parametrize(
    ("family", "intercept"), [("linear", True), ("logistic", False), ("poisson", True)]
)
def test_a_sites_model_has_the_loss_that_the_run_reports(family, intercept, tmp_path):
    run = trained("molar", f"sparse-{family}", family=family, intercept=intercept)
    folder = run.export(2, out="model")
    module, memory, names = load_model(folder), run.personal_model(2), run.learned.kind.columns
    table = pd.read_csv(folder / "coefficients.csv", index_col="name")
    for name in names:
        expected = memory[name].tolist()  # the coefficient, its interval, own and shared
        assert table.loc[name].tolist() == pytest.approx(expected, nan_ok=True)
    test = table_data(run.experiment).test[2]
    with torch.no_grad():
        eta = module.layer0(torch.from_numpy(test.x))[:, 0].numpy()
        mean = module(torch.from_numpy(test.x))[:, 0].numpy()
    loss = FAMILIES[family].loss(eta, test.y).mean()
    assert loss == pytest.approx(run.results["clients"]["loss-personal"][2], abs=1e-9)
    np.testing.assert_allclose(mean, FAMILIES[family].mean(eta))
    assert f"test rows | loss | {loss:.4g} | " in (folder / "card.md").read_text()
    common = load_model(run.export(out="common"))
    shared = run.results["shared"]["coef"]
    assert common.layer0.weight[0].tolist() == shared[: len(names)]
    assert ("layer0.bias" in common.state_dict()) == intercept


def test_a_target_of_text_gives_what_its_numbers_give(tmp_path):
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(240, 2)), columns=["age", "dose"])
    numbers = (rng.random(240) < 1 / (1 + np.exp(-x.age))).astype(int)
    found = {}
    for name, target in {"numbers": numbers, "text": numbers.map({0: "home", 1: "ward"})}.items():
        rows = x.assign(task=np.repeat(["north", "south", "west"], 80), y=target)
        rows.to_csv("rows.csv", index=False)
        rows.tail(50).drop(columns="task").to_csv("new.csv", index=False)
        run = engram.simulate(
            dataset="csv:rows.csv", method="molar", family="logistic", out=name, progress=False
        )
        adapted = run.adapt("new.csv", out=f"{name}-adapted")
        card = (run.export("south", out=f"{name}-south") / "card.md").read_text()
        found[name] = run.results["shared"], load_model(adapted).layer0.weight.tolist()
        assert f"| outputs | values: {'ward' if name == 'text' else '0'} |" in card
        if name == "numbers":
            numbered = run
    with pytest.raises(Refused, match="y must hold numbers"):
        numbered.adapt("new.csv")  # a text, of which the run does not say what it means
    card = (tmp_path / "numbers-adapted" / "card.md").read_text()
    pattern = r"\| ([a-z, -]+) \| loss \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|"
    losses = {what: [*map(float, rest)] for what, *rest in re.findall(pattern, card)}
    assert len(losses) == 3
    assert all(low < mean < high for mean, low, high in losses.values())
    shared, new = np.array(numbered.results["shared"]["coef"]), x.tail(50).to_numpy()
    eta = new @ shared[:2] + shared[2]
    deviance = 2 * (np.logaddexp(0, eta) - numbers.tail(50) * eta)
    assert losses["the common model"][0] == pytest.approx(deviance.mean(), rel=1e-3)
    assert found["text"] == found["numbers"]
    assert run.results["classes"] == ["home", "ward"]


def test_onnx_of_coefficients_is_in_double_precision(tmp_path):
    run = trained("molar", "sparse-poisson", family="poisson")
    module = load_model(run.export(1, out="plain"))
    x = torch.randn(7, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with runner(run.export(1, out="onnx", format="onnx")) as (_, runs):
        torch.testing.assert_close(runs(x), module(x).detach(), rtol=1e-12, atol=1e-12)


def test_a_bandit_site_leaves_with_its_coefficients(tmp_path):
    run = trained("molar-bandit", num_rounds=5)
    module = load_model(run.export(1, out="model"))
    assert torch.equal(module.layer0.weight, run.personal_model(1)["coefs"])


def test_a_users_network_leaves_as_it_predicts(tmp_path):
    run = trained("meta-ban", "linear-groups", num_clients=4, num_rounds=12, hidden="6")
    e, store = run.experiment, RamStore()
    store.restore(run.learned.checkpoint.memories)
    host = UserSites(e, drawn_arrivals(e), store, e.num_clients)
    user = next(client for client in range(4) if store.newest(client, before=99))
    arms = np.random.default_rng(0).normal(size=(5, host.arrivals.dim))
    expected, _ = host.predictions([user], arms, 99)
    module = load_model(run.export(user, out="model"))
    found = module(torch.from_numpy(arms).to(module.layer0.weight.dtype))
    np.testing.assert_allclose(found[:, 0].detach(), expected[0], rtol=1e-6, atol=1e-9)
    with pytest.raises(Refused, match="meta-ban has no common model: export a client's"):
        run.export(out="common")
    with pytest.raises(Refused, match="meta-ban learns by acting, and adapts to no rows"):
        run.adapt("rows.csv")
