"""A backend of torch.compile: ``torch.compile(model, backend="anatune")``."""

from anatune.network.backends.torch import OPTIONS as OPTIONS
from anatune.network.backends.torch import backend as backend
