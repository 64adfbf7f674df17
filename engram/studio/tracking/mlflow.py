"""MLflow: a run of the experiment ``engram``, where MLFLOW_TRACKING_URI says."""

import os
import time
from collections.abc import Mapping
from typing import Final

from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from engram.link.addresses import direct
from engram.studio.tracking.sending import About, Ending, Tracker

_EXPERIMENT: Final = "engram"
_KEY, _GROUP, _ROUND = "engram.run", "engram.group", "engram.round"  # tags
_MOST: Final = 100  # settings in a request

# Else a server that does not answer holds up a run for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.update(direct(os.environ))  # a server on this machine is beside the proxies


class MLflow(Tracker):
    """A run at MLflow.

    It is found again by its key, which is a tag; another tag, which goes with each round's numbers,
    tells the last round.
    """

    def __init__(self, about: About, told: int) -> None:
        del told  # it knows better
        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(_EXPERIMENT)
        found = self._client.search_runs([experiment], f"tags.`{_KEY}` = '{about.key}'")
        tags = {_KEY: about.key, _GROUP: about.group}
        run = (
            found[0]
            if found
            else self._client.create_run(experiment, run_name=about.name, tags=tags)
        )
        self._run = run.info.run_id
        self.known = int(run.data.tags.get(_ROUND, -1))
        if not found:
            settings = [Param(key, str(value)) for key, value in about.settings.items()]
            for start in range(0, len(settings), _MOST):
                self._client.log_batch(self._run, params=settings[start : start + _MOST])

    def tell(self, server_round: int, values: Mapping[str, float]) -> None:
        """See ``Tracker.tell``."""
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, server_round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics, tags=[RunTag(_ROUND, str(server_round))])

    def finish(self, end: Ending) -> None:
        """Adds the results; histograms are figures, and clients' values in a file."""
        for name, value in end.results.items():
            self._client.log_metric(self._run, f"results/{name}", value, step=0)
        self._client.log_dict(
            self._run, {name: list(each) for name, each in end.clients.items()}, "clients.json"
        )
        for name, values in end.clients.items():
            figure = Figure()
            axes = figure.subplots()
            axes.hist(values)
            axes.set(xlabel=name, ylabel="clients")
            self._client.log_figure(self._run, figure, f"clients/{name}.png")
        for path in end.files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)
