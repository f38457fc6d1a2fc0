"""The passes of ``anatune.compile`` as a pipeline of Relax, "anatune", which importing this registers."""

from anatune.network.backends.relax import pipeline as pipeline
from anatune.network.backends.relax import target as target
