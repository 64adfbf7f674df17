"""The tables of four hospitals, with what is usually wrong with them."""

import numpy as np
import pandas as pd

SITES = {"north": 400, "south": 160, "east": 60, "west": 120}


def write_hospitals(folder, *, mended=False):
    """Writes a CSV file for each hospital; returns their paths, in the order of ``SITES``.

    Numbers, text, missing values; unequal sizes; no current smokers in the east; no icu in the
    south; columns in another order in the south, whose creatinine is in other units (umol/l); one
    "?" in age in the west. In mended files, units are alike, and the "?" is an empty cell.
    """
    rng, paths = np.random.default_rng(11), []
    folder.mkdir(exist_ok=True)
    for site, rows in SITES.items():
        levels = ["never", "former", "current"] if site != "east" else ["never", "former"]
        d = pd.DataFrame(
            {
                "age": rng.normal(62, 12, rows).round(1),
                "bp": rng.normal(130, 18, rows).round(),
                "crea": rng.lognormal(0, 0.4, rows).round(2),
                "sex": rng.choice(["f", "m"], rows),
                "smoker": rng.choice(levels, rows),
            }
        )
        z = 0.05 * (d.age - 60) + 0.02 * (d.bp - 130) + 1.2 * (d.crea - 1) + 0.4 * (d.sex == "m")
        effect = -0.3 if site == "south" else 0.9
        z = z + effect * (d.smoker == "current") + rng.normal(0, 0.8, rows)
        d["outcome"] = np.where(z < 0.2, "home", np.where(z < 1.2, "ward", "icu"))
        d["days"] = (3 + 1.2 * z + rng.normal(0, 1, rows)).clip(0.2).round(1)
        d.loc[rng.random(rows) < 0.1, "crea"] = np.nan
        d.loc[rng.random(rows) < 0.05, "smoker"] = None
        if site == "south":
            d.loc[d.outcome == "icu", "outcome"] = "ward"
            d["crea"] = d.crea if mended else (d.crea * 88.4).round()
            d = d[["days", "bp", "age", "crea", "smoker", "sex", "outcome"]]
        if site == "west" and not mended:
            d["age"] = d.age.astype(object)
            d.loc[3, "age"] = "?"
        paths.append(folder / f"{site}.csv")
        d.to_csv(paths[-1], index=False)
    return paths


GERMAN = {"age": "Alter", "bp": "Blutdruck", "crea": "Kreatinin", "sex": "Geschlecht"}
GERMAN |= {"smoker": "Raucher", "outcome": "Entlassung nach", "days": "Tage"}
WORDS = {
    "sex": {"f": "weiblich", "m": "männlich"},
    "smoker": {"never": "nie", "former": "früher", "current": "aktuell"},
    "outcome": {"home": "Hause", "ward": "Station", "icu": "Intensiv"},
}


def write_german_hospitals(folder):
    """Writes the files as German programs do; returns their paths, in the order of ``SITES``.

    Semicolons, decimal commas, cp1252, German words; the south has the sexes as 1 and 2.
    """
    paths = write_hospitals(folder)
    for path in paths:
        d = pd.read_csv(path, dtype={"age": str})
        d = d.assign(**{name: d[name].map(words) for name, words in WORDS.items()})
        d["age"] = d.age.str.replace(".", ",")
        if path.stem == "south":
            d["sex"] = d.sex.map({"weiblich": 1, "männlich": 2})
        d = d.rename(columns=GERMAN)
        d.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
    return paths
