"""The section `cluster`: what `launch.py render` asks of Slurm or Kubernetes.

Invariant: nothing here reaches a run; it only fills in the files that start one.
"""

from pydantic import Field

from protocol.settings import Section


class ClusterSettings(Section):
    """What `launch.py render` asks of a cluster (docs/clusters.md); a run itself does not read it."""

    shared_dir: str = Field(default="/shared", pattern=r"/\S*")
    """Folder that all nodes mount at this path, for the run directory: checkpoints, and weights on their way
    to rollout workers."""
    port: int = Field(default=29500, ge=1024, le=65535)
    """Of the controller, on the node where it runs."""
    trainer_nodes: int = Field(default=1, ge=1)
    """Nodes that `trainer.ranks` are spread over evenly."""
    gpus_per_rank: int = Field(default=1, ge=0, le=1)
    """1, or 0 to train on CPUs."""
    gpus_per_instance: int = Field(default=1, ge=0)
    """GPUs of one rollout worker; 0 to generate on CPUs."""
    cpus_per_rank: int = Field(default=8, ge=1)
    """CPU cores of one trainer rank."""
    cpus_per_instance: int = Field(default=8, ge=1)
    """CPU cores of one rollout worker."""
    cpus_per_agent: int = Field(default=4, ge=1)
    """CPU cores of one agent worker, with the processes and tools of its episodes."""
    memory_gb_per_agent: int = Field(default=16, ge=1)
    """Memory of one agent worker, in GiB."""
    memory_gb_per_rank: int = Field(default=64, ge=1)
    """Memory of one trainer rank, in GiB; with FSDP, checkpoints are gathered on rank 0."""
    memory_gb_per_instance: int = Field(default=64, ge=1)
    """Memory of one rollout worker, in GiB."""
    time_limit: str = Field(default="24:00:00", pattern=r"(\d+-)?\d+(:\d{2}){0,2}")
    """Of a Slurm job, as Slurm writes it. The run goes on when its jobs are submitted again."""
    partition: str = ""
    """Slurm partition of trainer and rollout; empty for the default one."""
    controller_partition: str = ""
    """Slurm partition of the controller, which needs no GPU; empty for the default one."""
    account: str = ""
    """Slurm account; empty for the default one."""
    image: str = "staleflow:latest"
    """Container image with this project in /app, and its dependencies, for Kubernetes."""
    namespace: str = "default"
    """Kubernetes namespace."""
    storage_class: str = ""
    """Kubernetes storage class that many nodes may write to (ReadWriteMany); empty for the default one."""
    storage_gb: int = Field(default=500, ge=1)
    """Size of the shared volume, in GiB."""
