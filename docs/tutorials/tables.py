# %% [markdown]
# # Tables with tasks
#
# Eight clinics measure how a dose lowers blood pressure. With one model for all, a clinic that differs goes unseen;
# with one model for each, every clinic has too few patients. We want coefficients for each clinic with intervals
# that can be trusted. In this simulation the dose works alike in all clinics but one.

# %%
import numpy
import pandas

rng = numpy.random.default_rng(1)
clinics = ["bern", "graz", "lyon", "oslo", "riga", "turin", "ulm", "zadar"]
truth = pandas.DataFrame(
    {"age": 0.4, "weight": 0.2, "dose": -6.0}, index=pandas.Index(clinics, name="clinic")
)
truth.loc["oslo", "dose"] = -12.0


def measured(rows):
    table = pandas.DataFrame(
        {
            "clinic": numpy.repeat(clinics, rows),
            "age": rng.normal(50, 10, rows * len(clinics)),
            "weight": rng.normal(75, 12, rows * len(clinics)),
            "dose": rng.uniform(0, 3, rows * len(clinics)),
        }
    )
    own = truth.loc[table["clinic"]].to_numpy()
    effect = (own * table[["age", "weight", "dose"]]).sum(axis=1)
    return table, 100 + effect + rng.normal(0, 5, len(table))


table, pressure = measured(rows=30)
table.assign(pressure=pressure).round(1).head(3)

# %% [markdown]
# ## Fit
#
# Adaptive MOLAR shrinks each clinic's estimate around what the clinics share, and keeps what is clearly a clinic's
# own. It has scikit-learn's interface, and takes the name of the column of tasks.

# %%
from engram.tables import AdaptiveRegressor

columns = ["age", "weight", "dose"]
model = AdaptiveRegressor().fit(table, pressure, task="clinic")
apart = pandas.DataFrame(model.support_, index=model.tasks_, columns=columns)
print(
    "apart from the others:",
    [(clinic, name) for clinic in clinics for name in columns if apart.loc[clinic, name]],
)
assert apart.loc["oslo", "dose"]

# %% [markdown]
# ## Coefficients with honest intervals
#
# An *honest* interval holds at its level however far a coefficient is from the others'. It is about as long as the
# clinic's own would be: others improve the estimate, but cannot prove that this clinic is like them.

# %% alt="The effect of the dose in each clinic, with honest intervals, and the true effect"
import matplotlib.pyplot as plt

dose = columns.index("dose")
limits = model.confidence_intervals()
figure, axes = plt.subplots(figsize=(6, 3))
axes.hlines(range(8), limits.low[:, dose], limits.high[:, dose])
axes.plot(model.coef_[:, dose], range(8), "o", label="estimate")
axes.plot(truth["dose"], range(8), "|", color="black", markersize=14, label="truth")
axes.set_yticks(range(8), clinics)
axes.set_xlabel("change of pressure with a unit of the dose")
_ = axes.legend(loc="lower right")
# %% [markdown]
# ## Do they hold?
#
# In fifty more tables, a level of 95 % should cover the truth in about 95 of 100 cases, for coefficients that are
# shared and for the one that is not.

# %%
covered = []
for _ in range(50):
    again, measurements = measured(rows=30)
    low, high = AdaptiveRegressor().fit(again, measurements, task="clinic").confidence_intervals()
    covered.append((low <= truth.to_numpy()) & (truth.to_numpy() <= high))
share = pandas.DataFrame(numpy.mean(covered, axis=0), index=clinics, columns=columns)
print(f"all: {share.to_numpy().mean():.1%}; the dose in oslo: {share.loc['oslo', 'dose']:.0%}")
assert share.to_numpy().mean() > 0.93

# %% [markdown]
# ## Would something simpler do?
#
# Errors on fresh rows, relative to the truth without noise: one model for each clinic, fixed effects (one model with
# an intercept for each clinic), a mixed model (all scatter, none is apart), and adaptive MOLAR. First where one
# clinic differs, then where none does.

# %%
models = {
    "each clinic alone": None,
    "fixed effects": {"alike": 0, "c": numpy.inf},
    "mixed": {"c": numpy.inf},
    "adaptive MOLAR": {},
}
from engram.tables import IndividualRegressor


def errors():
    found = {name: [] for name in models}
    for _ in range(20):
        rows, target = measured(rows=30)
        for name, settings in models.items():
            kind = IndividualRegressor() if settings is None else AdaptiveRegressor(**settings)
            off = kind.fit(rows, target, task="clinic").coef_ - truth.to_numpy()
            found[name].append((off**2 * [10**2, 12**2, 3 / 4]).sum(axis=1).mean())
    return pandas.Series({name: numpy.mean(values) for name, values in found.items()})


one_differs = errors()
truth.loc["oslo", "dose"] = -6.0
none_differs = errors()
pandas.DataFrame({"one differs": one_differs, "none differs": none_differs}).round(2)

# %%
assert one_differs["adaptive MOLAR"] < one_differs.drop("adaptive MOLAR").min()
assert none_differs["fixed effects"] < 1.2 * none_differs["adaptive MOLAR"]

# %% [markdown]
# Where a single coefficient of a single clinic differs, this is what MOLAR is for. Where nothing differs, fixed
# effects do as well, and are simpler; [on real tables](../results.md#tables-with-tasks) that is common. So ask the
# command, which names a winner only where one is shown on rows held out:
#
# ```text
# engram reproduce molar-table mine.csv --task clinic --target pressure
# ```
#
# [Tables with tasks](../tables.md) has the rest, also for sites whose rows may not move.
