"""The models of methods that train networks, as ``MODELS`` finds them."""

from engram.home.learned import MODELS, Models
from engram.home.network_package import package_of
from engram.home.newcomers import adapted_package
from engram.home.run_models import LearnedNetworks
from engram.settings.network import NetworkMethod

MODELS.register(NetworkMethod.plug_in)(Models(LearnedNetworks, package_of, adapted_package))
