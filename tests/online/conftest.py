"""What tests of the estimators share."""

import pytest
from sklearn.base import clone

from tests.online.streams import MODELS, rows


@pytest.fixture(params=MODELS)
def case(request):
    model, target, named = MODELS[request.param]
    x, y = rows(120)
    return clone(model), x, target(x, y), named
