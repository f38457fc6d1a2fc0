"""Workers as jobs of Slurm, PBS, SGE, LSF or HTCondor."""

from anatune.fleet.jobqueue import queue_cluster as queue_cluster
